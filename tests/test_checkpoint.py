import os
from pathlib import Path

import numpy as np
import pytest
import torch

from placeto.checkpoint import (
    CheckpointError,
    capture_random,
    checkpoint_path,
    load_checkpoint,
    restore_random,
    save_checkpoint,
)

WEIGHT = torch.arange(6.0).reshape(2, 3)
STATE = {"placer": "placeto", "parameters": {"weight": WEIGHT}, "iteration": 7, "losses": [0.5]}


def test_round_trip(tmp_path: Path) -> None:
    save_checkpoint(STATE, tmp_path / "checkpoint.pt")
    for path in (tmp_path / "checkpoint.pt", tmp_path):  # the file, or the run's directory
        state = load_checkpoint(path)
        assert torch.equal(state["parameters"]["weight"], WEIGHT)
        assert (state["placer"], state["iteration"], state["losses"]) == ("placeto", 7, [0.5])


def test_directory_of_the_run_is_made(tmp_path: Path) -> None:
    save_checkpoint(STATE, tmp_path / "runs" / "a" / "checkpoint.pt")
    assert load_checkpoint(tmp_path / "runs" / "a")["iteration"] == 7


def test_a_failed_save_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(STATE, tmp_path / "checkpoint.pt")

    def crash(state: object, stream: object) -> None:
        stream.write(b"half")  # type: ignore[attr-defined]
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", crash)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint({**STATE, "iteration": 8}, tmp_path / "checkpoint.pt")
    assert load_checkpoint(tmp_path)["iteration"] == 7
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"garbage" * 100, b"\x80\x02]q\x00.", b"PK\x03\x04" + b"\0" * 99], ids=range(5)
)
def test_files_that_are_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt: not a checkpoint") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


def test_other_torch_files_are_refused(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1)}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=r'"format" must be "placeto.checkpoint/1"'):
        load_checkpoint(tmp_path / "weights.pt")
    torch.save({"format": "placeto.checkpoint/1", "code": Path("x")}, tmp_path / "object.pt")
    with pytest.raises(CheckpointError, match="not a checkpoint"):  # no arbitrary object is ever unpickled
        load_checkpoint(tmp_path / "object.pt")


def test_missing_files_say_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no checkpoint\.pt; give a checkpoint, or the --out directory"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no such file"):
        load_checkpoint(tmp_path / "nothing.pt")


def test_path_of_a_run(tmp_path: Path) -> None:
    assert checkpoint_path(tmp_path) == tmp_path / "checkpoint.pt"
    assert checkpoint_path(tmp_path / "other.pt") == tmp_path / "other.pt"


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
    with pytest.raises(CheckpointError, match="holds 1 random generators, not 0"):
        restore_random(state)
    with pytest.raises(CheckpointError, match="another kind"):
        restore_random(state, [torch.Generator()])
