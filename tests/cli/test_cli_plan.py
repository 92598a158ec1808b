"""``placeto plan``."""

import copy
import json
import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from placeto.formats.placement import load_placement
from placeto.formats.plan import load_plan, save_plan
from placeto.planning import plan, ways
from placeto.planning.planned_steps import Kind
from placeto.problem.cluster import load_cluster, save_cluster
from tests.cases import with_devices
from tests.cli.test_cli_fits import LLAMA, NET
from tests.command_line import fails, run
from tests.forked_ranks import run_ranks

CHECKPOINTED = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return checkpoint(lambda x: self.narrow(self.wide(x).tanh()), x, use_reentrant=False)


def net(batch=8):
    return nn.Sequential(*(Block() for _ in range(4))), (torch.empty(batch, 64),), lambda y: y.square().mean()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)


@pytest.mark.slow
def test_the_page_says_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    program, *commands = re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    Path("encoder.py").write_text(program)
    for command, printed in zip(commands[::2], commands[1::2], strict=True):
        assert run(*command.split()[1:]) == 0
        assert capsys.readouterr().out == printed
    assert load_placement("plan.json").placement


def test_a_table_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "net.py:net", "--cluster", "4xv100", "--micro-batches", "4", "--simulations", "60", "-o", "p.json")
    assert run(*words) == 0
    out, err = capsys.readouterr()
    assert out.startswith("net on 4xv100: batch 64, fp32, adam\n")
    for way in ("one device", "whole modules", "data parallel, fully sharded", "pipeline", "interleaved pipeline"):
        assert f"\n{way}" in out
    assert "torch-pipeline\n" in out
    assert "no pipeline can be exported" not in out
    assert "\nUse " in out
    assert "note: " not in err
    assert load_placement("p.json").placement
    assert run("plan", "net.py:net", "--cluster", "4xv100", "--headroom", "15.999GB", "--simulations", "0") == 0
    assert "too little" in capsys.readouterr().out


def test_groups_of_boards_by_the_plan_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "float16", "vocab_size": 512}
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_hidden_layers": 2}
    Path("config.json").write_text(json.dumps(config | sizes | {"num_key_value_heads": 2}))
    words = ("plan", "config.json", "--cluster", "4xv100", "--batch", "2", "--length", "4096", "--simulations", "0")
    assert run(*words, "-o", "p.json") == 0
    out = capsys.readouterr().out
    assert re.search(r"^data parallel +2 replicas, groups of 2 +2 .* torch DDP, TP$", out, re.MULTILINE)
    assert re.search(r"^tensor parallel +gpu:0\.\.gpu:1 +1 .* torch, TP$", out, re.MULTILINE)
    assert re.search(r"^not tried in groups: .*num_key_value_heads is 2, which groups of 4 don't divide$", out, re.M)
    assert "torch:" not in out, "nobody asked for torch"
    assert json.loads(Path("p.json").read_text())["plan"]["width"] == 2


def test_groups_of_boards_by_the_plan_of_a_factory(capsys: pytest.CaptureFixture[str]) -> None:
    styles = "{'0': ColwiseParallel(), '2': RowwiseParallel()}"
    Path("net.py").write_text(
        f"""
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel


def net(size=64, plan=True):
    module = nn.Sequential(nn.Linear(size, 4 * size), nn.ReLU(), nn.Linear(4 * size, size))
    return module, (torch.empty(8, size),), lambda y: y.square().mean(), (), {styles} if plan is True else plan
"""
    )
    words = ("plan", "net.py:net", "--cluster", "2xv100", "--simulations", "0", "--micro-batches", "2")
    assert run(*words) == 0
    assert "\ntensor parallel" in capsys.readouterr().out
    assert run(*words, "--set", "plan=None") == 0
    assert "\nnot tried in groups: net has no parallel plan\n" in capsys.readouterr().out
    assert run(*words, "--runnable-by", "torch") == 0
    assert not re.search("^(interleaved )?pipeline .*groups", capsys.readouterr().out, re.MULTILINE)
    assert "the fifth value that it returns must be a parallel plan" in fails(capsys, *words, "--set", "plan=3")


def test_a_page_has_the_table_the_sentence_and_the_grid(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "net.py:net(batch=65536)", "--cluster", "4xv100", "--micro-batches", "4", "--runnable-by", "torch")
    assert run(*words, "--report", "page.html") == 0
    out, page = capsys.readouterr().out, Path("page.html").read_text()
    assert re.search(r"^report       page.html \(.* kB\)$", out, re.MULTILINE)
    assert re.search(r"^Use .*$", out, re.MULTILINE)[0] in page  # type: ignore[index]
    table = re.split(r"^(?:not tried|Use )", out, maxsplit=1, flags=re.MULTILINE)[0].splitlines()[2:]
    cells = [cell for line in table for cell in re.split(r"  +", line)]
    assert len(table) > 3
    assert all(f">{cell}" in page.replace("\N{NO-BREAK SPACE}", " ") for cell in cells)
    assert "Each device is a replica of the whole model. A cell is what" in page
    assert 'title="F0: ' in page


def test_a_number_that_does_not_divide_the_batch_is_refused_before_planning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ways, "_simple_ways", lambda *given: pytest.fail("it plans"))
    assert run("plan", "net.py:net", "--cluster", "4xv100", "--micro-batches", "3") == 2
    assert "error: --micro-batches 3: net: a batch of 64 can't be split into 3" in capsys.readouterr().err


def test_a_batch_that_nothing_divides_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "net.py:net(batch=7)", "--cluster", "2xv100", "--simulations", "0") == 0
    out, err = capsys.readouterr()
    assert "not tried in 2, 4, 8, 16 micro-batches: net: a batch of 7" in out
    assert "a number that divides the batch of 7" in err
    assert run("plan", "net.py:net(batch=7)", "--cluster", "2xv100", "--simulations", "0", "--micro-batches", "7") == 0
    assert "\npipeline" in capsys.readouterr().out


def test_a_sequence_that_is_not_split_gets_no_hint_on_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(
        "import torch\ndef net():\n    return torch.nn.GRU(4, 4), [torch.empty(4, 2, 4)], lambda y: y[0].mean()\n"
    )
    assert run("plan", "net.py:net", "--cluster", "2xv100", "--simulations", "0") == 0
    out, err = capsys.readouterr()
    assert re.search("not tried in 2, 4, 8, 16 micro-batches: net: the module has its batch in dimension 1", out)
    assert "note" not in err


def test_a_tool_that_runs_no_pipeline_of_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(
        NET.replace("    return module,", "    module[5].weight = module[0].weight\n    return module,")
    )
    words = ("plan", "net.py:net", "--cluster", "2xv100", "--micro-batches", "2", "--runnable-by", "torch")
    assert run(*words) == 0
    out, err = capsys.readouterr()
    assert "pipeline" not in out
    assert re.search("no pipeline of net was found that torch runs: .* is read before it by 0 and behind it by 5", err)


def test_torch_leaves_out_activation_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    Path("checkpointed.py").write_text(CHECKPOINTED)
    words = ("--cluster", "2xv100", "--micro-batches", "2", "--runnable-by", "torch")
    for model, told in (("checkpointed.py:net", True), ("net.py:net", False)):
        assert run("plan", model, *words) == 0
        assert ("torch-pipeline traces the model without its activation checkpoints" in capsys.readouterr().out) == told


def test_sharded_parameters_have_a_plan_and_no_placement(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "net.py:net", "--set", "batch=8192", "--cluster", "2xv100", "--simulations", "0")
    assert run(*words, "--micro-batches", "2", "--headroom", "15.9015GB", "-o", "p.json") == 0
    out, err = capsys.readouterr()
    assert "Use data parallel, fully sharded (2 replicas) in 2 micro-batches" in out
    assert "p.json has no placement, as gradients are sharded; `placeto run --plan` runs it by torch FSDP" in err
    plan = load_plan("p.json")
    assert (plan.kind, plan.placement, plan.plan["stages"][0]["sharding"]) == ("data parallel, fully sharded", None, 3)
    for command in (
        ("simulate", "net.py:net", "--cluster", "2xv100", "--placement"),
        ("export", "net.py:net", "--cluster", "2xv100", "--format", "dot", "-o", "graph.dot", "--placement"),
    ):
        told = "p.json: its way, 'data parallel, fully sharded', shards gradients, so that no op has a device: `placeto"
        assert told in fails(capsys, *command, "p.json")


def test_the_ops_of_replicas_fit_where_the_replicas_do(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(CHECKPOINTED)
    save_cluster(with_devices("2xv100", memory=18_000_000), "tight.json")
    given, made = ("net.py:net(8192)", "--cluster", "tight.json", "--micro-batches", "2"), dict[str, Any]()
    exec(CHECKPOINTED, made)
    module, inputs, loss = made["net"](8192)
    plans = plan(module, inputs, loss=loss, cluster="tight.json", micro_batches=[1, 2], simulations=0)
    replicas = next(step for step in plans.steps if step.kind == Kind.REPLICAS)
    assert replicas.fits
    save_plan(replicas.file(load_cluster("tight.json"), 8192), "plan.json")
    assert run("simulate", *given, "--placement", "plan.json") == 0
    assert re.search(r"^fits +yes$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_plan_and_fits_give_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where only checkpoints let the model fit. Parameters in 16 bits are named in the first line."""
    pytest.importorskip("transformers")
    Path("config.json").write_text(json.dumps({**LLAMA, "dtype": "bfloat16"}))
    given, answers = ("config.json", "--cluster", "tight.json", "--batch", "2"), []
    for memory in (1_500_000, 1_000_000):
        save_cluster(with_devices("2xv100", memory=memory), "tight.json")
        assert run("fits", *given, "--length", "256") == 0
        fits = capsys.readouterr().out
        assert run("plan", *given, "--length", "256", "--simulations", "0") == 0
        first, *rest = capsys.readouterr().out.splitlines()
        assert ", bf16, adam" in first
        advice = next(line for line in rest if line.startswith(("Use ", "None of these fits")))
        answers.append((advice.startswith("Use "), ", recomputing " in advice))
        assert bool(re.search("^It fits|devices it fits", fits, re.MULTILINE)) == answers[-1][0]
    assert answers == [(True, True), (False, True)], advice
    assert "Not tried: " in advice
    assert "checkpoints" not in advice
    assert not any("before the model is wrapped" in line for line in rest), "nobody would run what doesn't fit"


@pytest.mark.parametrize(("norm", "memory"), [("Identity()", 20_000_000), ("BatchNorm1d(256)", 36_000_000)])
def test_what_is_to_be_recomputed_is_told_as_lines_of_code(
    norm: str, memory: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """They run: the blocks that they name compute their forward pass twice in a step, and count it once in norms."""
    plain = CHECKPOINTED.replace(
        "checkpoint(lambda x: self.narrow(self.wide(x).tanh()), x, use_reentrant=False)",
        "self.narrow(self.norm(self.wide(x)).tanh())",
    ).replace("super().__init__()", f"super().__init__(); self.norm = nn.{norm}")
    Path("blocks.py").write_text(plain)
    save_cluster(with_devices("2xv100", memory=memory), "tight.json")
    words = ("blocks.py:net(8192)", "--cluster", "tight.json", "--micro-batches", "2", "--simulations", "0")
    assert run("plan", *words) == 0
    out = capsys.readouterr().out
    assert (blocks := re.search(r"Use data parallel.* recomputing (\d) of 4 blocks", out))
    code = out.partition("before the model is wrapped:\n")[2].partition("\ndevice ")[0]
    made = dict[str, Any]()
    exec(Path("blocks.py").read_text(), made)
    model, inputs, loss = made["net"](8)
    inputs[0].copy_(torch.randn(8, 64))
    eager = copy.deepcopy(model)
    calls = Counter[int]()
    for number, block in enumerate(model):
        block.wide.register_forward_pre_hook(lambda *_, number=number: calls.update([number]))
    exec(textwrap.dedent(code), {"model": model})
    for _ in range(3):
        loss(model(*inputs)).backward()
        loss(eager(*inputs)).backward()
    for (name, value), expected in zip(model.named_buffers(), eager.buffers(), strict=True):
        assert "num_batches" in name or torch.allclose(value, expected, atol=1e-6), name
    assert ("norm.momentum" in code) == ("Norm" in norm)
    assert [calls[number] for number in range(4)] == [6] * int(blocks[1]) + [3] * (4 - int(blocks[1]))


CHECK = """
import copy, torch
from transformers import {name}

torch.manual_seed(0)
FOLDER = "tiny"
ids = torch.randint(0, 128, (2, 8))
whole = {name}.from_pretrained(FOLDER)
whole(input_ids=ids, labels=ids).loss.backward()
{lines}
rank, parts = torch.distributed.get_rank(), parts.fsdp_size
rows = ids.chunk(parts)[rank] if parts == 2 else ids
model(input_ids=rows, labels=rows).loss.backward()
for (path, sharded), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
    found = getattr(sharded.grad, "full_tensor", lambda: sharded.grad)()
    torch.testing.assert_close(found, expected.grad, rtol=1e-5, atol=1e-6, msg=path)
torch.distributed.destroy_process_group()
print("equal")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "way"), [(1_600_000, "tp_size=1, fsdp_size=2"), (1_100_000, "tp_size=2, fsdp_size=1")]
)
def test_how_transformers_shards_its_own_model_is_told_as_lines_of_code(
    memory: int, way: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """They run, with the checkpoints of the lines below: gradients are those of the whole model."""
    transformers = pytest.importorskip("transformers", minversion="5.23")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = transformers.LlamaConfig(**sizes, vocab_size=128, num_hidden_layers=2)
    transformers.LlamaForCausalLM(config).save_pretrained("tiny")
    save_cluster(with_devices("2xv100", memory=memory), "tight.json")
    words = ("--cluster", "tight.json", "--batch", "4", "--length", "64", "--simulations", "0")
    assert run("plan", "tiny/config.json", *words) == 0
    out = capsys.readouterr().out
    told = out.partition("transformers shards the model so:\n")[2].partition("\ndevice ")[0]
    lines = "\n".join(line[4:] for line in told.splitlines() if line.startswith("    "))
    assert way in lines
    Path("check.py").write_text(CHECK.format(name="LlamaForCausalLM", lines=lines))
    assert "use_reentrant" in lines
    assert run_ranks("check.py", ranks=2, folder=tmp_path / "ranks").count("equal") == 2
