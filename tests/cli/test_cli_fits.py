"""``placeto fits``."""

import json
from pathlib import Path

import pytest

from tests.command_line import run

NET = """
import torch
from torch import nn


def net(batch=64, frozen=False):
    module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
    module[0].requires_grad_(not frozen)
    return module, (torch.empty(batch, 512),), lambda y: y.square().mean()
"""
OWN = """
import torch


def net():
    return torch.nn.Linear(4, 4), [torch.empty(4, 4)]


def classes():
    return *net(), torch.nn.functional.cross_entropy, [torch.zeros(4, dtype=torch.int64)]
"""
MEMORY = ("weights", "gradients", "optimizer", "activations", "received")
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 100,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("config.json").write_text(json.dumps(LLAMA))


def test_a_table_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fits", "net.py:net", "--cluster", "2xv100", "--set", "frozen=True") == 0
    printed = capsys.readouterr()
    assert "1 micro-batch\n" in printed.err
    first, head, row, sentence = printed.out.splitlines()
    assert first == "net: 1.6 million parameters in float32, of which 1.3 million are trained, batch 64, adam"
    assert head.split() == ["device", "of", "M", "recomputed", *MEMORY, "together", "fits"]
    assert row.startswith("v100    16.0 GB  1  -           6.30 MB  5.25 MB    10.5 MB")
    assert sentence.startswith("It fits on v100 (16.0 GB), with ")


def test_a_model_by_its_config(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    words = ("--memory", "2.5MB", "--batch", "8", "--length", "128", "--precision", "bf16")
    assert run("fits", "config.json", *words) == 0
    out = capsys.readouterr().out
    assert ": 95,040 parameters in float32, batch 8, bf16, adam" in out
    rows = out.splitlines()[2:-1]
    assert [row.split()[3:5] for row in rows] == [["1", "-"], ["2", "-"], ["4", "-"], ["8", "-"], ["8", "1"]]
    assert rows[-1].endswith("yes")
    assert "lacks" in rows[0]
    assert "It fits on device (2.50 MB) in 8 micro-batches, recomputing 1 of 2 blocks, with " in out


def test_what_a_factory_lacks_is_said_as_by_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text(OWN)
    assert run("fits", "own.py:net", "--memory", "1GB", "--loss", "mean", "--micro-batches", "2e0") == 0
    assert capsys.readouterr().out.startswith("net: 20 parameters in float32, batch 4, adam\n")
    for words, told in (
        (
            "own.py:net",
            "the loss must be a scalar tensor, not a tensor of shape (4, 4); give a loss that makes it one: "
            "return (module, inputs, loss), or add --loss mean",
        ),
        (
            "own.py",
            "name the function in it that returns (module, inputs), (module, inputs, loss) or (module, inputs, "
            "loss, targets): own.py:net, own.py:classes",
        ),
        ("own.py:net --micro-batches 2.5", "'2.5' is no whole number"),
    ):
        assert run("fits", *words.split(), "--memory", "1GB") == 2
        assert told in capsys.readouterr().err


def test_the_mean_of_the_output_needs_no_targets() -> None:
    Path("own.py").write_text(OWN)
    assert run("fits", "own.py:classes", "--memory", "1GB", "--loss", "mean") == 0


def test_who_keeps_some_memory_free_is_not_told_to_do_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fits", "net.py:net", "--memory", "1GB", "--micro-batches", "1") == 0
    needed = float(capsys.readouterr().out.splitlines()[2].split()[-3])
    assert run("fits", "net.py:net", "--memory", f"{1.02 * needed}MB", "--micro-batches", "1") == 0
    assert "--headroom 1GB" in capsys.readouterr().out
    more = "--memory", f"{1.02 * needed + 5}MB", "--headroom", "5MB"
    assert run("fits", "net.py:net", *more, "--micro-batches", "1") == 0
    out = capsys.readouterr().out
    assert "It fits" in out
    assert "--headroom" not in out
