import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch
from torch import nn

from placeto.errors import TrainingError
from placeto.placers import load_placer
from placeto.policies import POLICIES
from placeto.training.checkpoint import capture_random, load_checkpoint, restore_random, save_checkpoint
from placeto.training.trainer import pretrained_config
from tests.problem.test_files import limited

WEIGHT = torch.arange(6.0).reshape(2, 3)
STATE = {"placer": "placeto", "parameters": {"weight": WEIGHT}, "iteration": 7, "losses": [0.5]}


def test_round_trip(tmp_path: Path) -> None:
    save_checkpoint(STATE, tmp_path / "runs" / "a" / "checkpoint.pt")  # in a folder that isn't there yet
    for path in (tmp_path / "runs" / "a" / "checkpoint.pt", tmp_path / "runs" / "a"):  # the file, or the folder
        state = load_checkpoint(path)
        assert torch.equal(state["parameters"]["weight"], WEIGHT)
        assert (state["placer"], state["iteration"], state["losses"]) == ("placeto", 7, [0.5])


def test_a_failed_save_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(STATE, path)
    with limited(1000), pytest.raises(OSError, match="File too large") as error:
        save_checkpoint({**STATE, "iteration": 8}, path)
    assert error.value.filename == str(path)
    assert load_checkpoint(tmp_path)["iteration"] == 7
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"garbage" * 100, b"\x80\x02]q\x00.", b"PK\x03\x04" + b"\0" * 99], ids=range(5)
)
def test_files_that_are_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    with pytest.raises(TrainingError, match=r"checkpoint\.pt: not a checkpoint") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


def test_other_files_and_missing_ones_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1)}, tmp_path / "weights.pt")
    torch.save({"format": "placeto.checkpoint/1", "code": Path("x")}, tmp_path / "object.pt")
    for name, says in (
        ("weights.pt", '"format" must be "placeto.checkpoint/1"'),
        ("object.pt", "not a checkpoint"),  # no arbitrary object is ever unpickled
        ("", r"has no checkpoint\.pt; give a checkpoint, or the --out directory"),
        ("nothing.pt", "no such file"),
    ):
        with pytest.raises(TrainingError, match=says):
            load_checkpoint(tmp_path / name)


@pytest.mark.parametrize("bits", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_random_states_continue_where_they_stood(tmp_path: Path, bits: str) -> None:
    generator = np.random.Generator(getattr(np.random, bits)(3))
    torch_generator = torch.Generator().manual_seed(5)
    generator.normal(size=5)
    torch.rand(3, generator=torch_generator)
    save_checkpoint({"random": capture_random([generator, torch_generator])}, tmp_path / "checkpoint.pt")
    expected = generator.normal(size=4), torch.rand(4, generator=torch_generator), torch.rand(4)
    fresh, fresh_torch = np.random.Generator(getattr(np.random, bits)(0)), torch.Generator()
    restore_random(load_checkpoint(tmp_path)["random"], [fresh, fresh_torch])
    assert np.array_equal(fresh.normal(size=4), expected[0])
    assert torch.equal(torch.rand(4, generator=fresh_torch), expected[1])
    assert torch.equal(torch.rand(4), expected[2])


def test_random_states_must_match(tmp_path: Path) -> None:
    state = capture_random([np.random.default_rng(0)])
    with pytest.raises(TrainingError, match="holds 1 random generators, not 0"):
        restore_random(state)
    with pytest.raises(TrainingError, match="another kind"):
        restore_random(state, [torch.Generator()])


def test_flipped_bits_are_seen(tmp_path: Path) -> None:
    """Each of them is refused, or changes nothing that is read, such as the padding between parts."""
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(STATE, path)
    good, random, messages = path.read_bytes(), np.random.default_rng(0), set[str]()
    inside = good.index(WEIGHT.numpy().tobytes())
    bits = [*range(8 * inside, 8 * (inside + WEIGHT.nbytes)), *random.integers(8 * len(good), size=200)]
    for place, bit in enumerate(bits):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            state = load_checkpoint(path)
        except TrainingError as error:
            messages.add(str(error))
        else:
            assert place >= 8 * WEIGHT.nbytes
            assert torch.equal(state["parameters"].pop("weight"), WEIGHT)
            assert state == {"format": "placeto.checkpoint/1", **STATE, "parameters": {}}
    assert all(message.startswith(f"{path}: not a checkpoint") and "\n" not in message for message in messages)


def nested(depth: int) -> list[object]:
    """Two lists that are one, in each of which are two that are one, and so on: 2 ** depth when written out."""
    value: list[object] = []
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"placer": nested(60)}, "'placer' holds too many values, or too deep ones"),
        ({"more": nested(60)}, "'more' holds too many values, or too deep ones"),
        ({"more": nested(14)}, None),
        ({"more": [nested(14)] * 99}, "'more' holds too many values"),
        ({"history": 4}, "history must be an object, not 4"),
        ({"controls": {"validation": "a"}}, "controls.validation must be a"),
        ({"improvements": {0: 3}}, "improvements"),
        ({"simulations": 10**30, "iteration": "1", "elapsed": None}, "simulations must be"),
        ({"placer": 3}, "placer must be a string, not 3"),
        ({"parameters": [1]}, r"parameters must be an object, not \[1\]"),
        ({"graphs": {"training": [1]}}, r"graphs.training must be an object, not \[1\]"),
        ({"parameters": {"weight": torch.tensor([1.0, np.nan])}}, "parameters holds a NaN or an infinite number"),
        ({"best_parameters": {"weight": torch.tensor([np.inf])}}, "best_parameters holds a NaN or an infinite number"),
        ({"optimizer": {"state": [{"step": np.nan}]}}, "optimizer holds a NaN or an infinite number"),
        ({"elite_score": torch.tensor([np.inf]), "best_validation": np.inf}, None),  # nothing was met so far
    ],
    ids=range(15),
)
def test_what_a_checkpoint_cannot_hold(tmp_path: Path, changes: dict[str, object], says: str | None) -> None:
    save_checkpoint({**STATE, **changes}, tmp_path / "checkpoint.pt")
    if says is None:
        load_checkpoint(tmp_path)
        return
    with pytest.raises(TrainingError, match=rf"checkpoint\.pt: .*{says}"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(1).expand(10**12),
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.eye(2).to(torch.float8_e4m3fn),
        lambda: torch.eye(2, dtype=torch.complex64),
        lambda: torch.zeros(2, device="meta"),
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
        lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
        lambda: torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.qint8),
        lambda: torch.eye(2).requires_grad_(),
        lambda: nn.Parameter(torch.eye(2)),
        lambda: torch.eye(2)._neg_view(),
        lambda: torch.float32,
        lambda: {3},
        lambda: 2j,
    ],
    ids=range(14),
)
@pytest.mark.parametrize("key", ["best_parameters", "elite", "more"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls some of them deprecated, or slow
def test_kinds_of_values_that_checkpoints_never_have(tmp_path: Path, make: Callable[[], object], key: str) -> None:
    save_checkpoint({**STATE, key: {"weight": [make()]}}, tmp_path / "checkpoint.pt")
    with pytest.raises(TrainingError, match=r"checkpoint\.pt: not a checkpoint") as refused:
        load_checkpoint(tmp_path)
    assert str(refused.value).isprintable()


def test_compressed_files_are_not_unpacked(tmp_path: Path) -> None:
    save_checkpoint({**STATE, "more": torch.zeros(100_000)}, tmp_path / "plain.pt")
    with ZipFile(tmp_path / "plain.pt") as plain, ZipFile(tmp_path / "packed.pt", "w", ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(TrainingError, match="compressed"):
        load_checkpoint(tmp_path / "packed.pt")


@pytest.mark.parametrize(
    ("placer", "change"),
    [
        ("placeto", {"hidden": 65_536}),
        ("placeto", {"rounds": 100}),
        ("placeto-paper", {"devices": 65_536}),
        ("seq2seq", {"hidden": 65_536, "max_devices": 65_536}),
        ("grouper", {"groups": 65_536, "hidden": 65_536}),
        ("gdp", {"hidden": 65_536}),
        ("gdp", {"layers": 100}),
        ("gdp", {"heads": 3}),
    ],
    ids=str,
)
def test_shapes_are_compared_with_the_settings_before_anything_is_made(
    tmp_path: Path, placer: str, change: dict[str, int]
) -> None:
    entry = POLICIES[placer]
    config = {"policy": asdict(entry.config()), "env": {}}
    weights = entry.policy(entry.config()).state_dict()
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint({"placer": placer, "config": config, "best_parameters": weights}, path)
    assert load_placer(path) is not None
    config["policy"] |= change
    save_checkpoint({"placer": placer, "config": config, "best_parameters": weights}, path)
    begin = time.process_time()
    with pytest.raises(TrainingError, match=r"checkpoint\.safetensors.*\(p.+\); train again"):
        load_placer(path)
    with pytest.raises(TrainingError, match=r"checkpoint\.safetensors.*\(p.+\); train again"):
        pretrained_config(path, load_checkpoint(path), "out")
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved.pop("config"),
        lambda saved: saved.pop("best_parameters"),
        lambda saved: saved["config"].pop("policy"),
        lambda saved: saved["config"].pop("env"),
        lambda saved: saved["config"].update(policy=[3]),
        lambda saved: saved["config"]["policy"].update(hidden="48"),
        lambda saved: saved["config"]["policy"].update(hidden=10**9),
        lambda saved: saved["config"]["policy"].update(rounds=10**9),
        lambda saved: saved["config"]["policy"].update(features=["paper"]),
        lambda saved: saved["config"]["policy"].update(change_weight=float("nan")),
        lambda saved: saved["config"]["policy"].update(colour="red"),
        lambda saved: saved["config"]["env"].update(tolerance={}),
        lambda saved: saved["best_parameters"].update({"from_node.weight": torch.zeros(3)}),
        lambda saved: saved["best_parameters"].update({"from_node.weight": 3}),
        lambda saved: saved["best_parameters"].update({3: torch.zeros(3)}),
        lambda saved: saved["config"]["env"].update({"\x1b[31m": 3}),
    ],
    ids=range(16),
)
def test_checkpoints_that_place_nothing(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    saved = load_checkpoint("pretrained")
    change(saved)
    save_checkpoint(saved, tmp_path / "checkpoint.pt")
    with pytest.raises(
        TrainingError, match=r"checkpoint\.pt|doesn't match this version of Placeto \(.+\); train"
    ) as refused:
        load_placer(tmp_path)
    assert str(refused.value).isprintable()
