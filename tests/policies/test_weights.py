"""Weights files."""

from pathlib import Path

import numpy as np
import pytest

from placeto.policies.weights import WeightsError, load_weights, save_weights
from placeto.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

STATE = {
    "format": "placeto.checkpoint/1",
    "placer": "placeto",
    "config": {"search": {"levels": (0.25, 1.0)}, "policy": {"rounds": 2}},
    "best_parameters": {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([1.5])},
}


def test_round_trip(tmp_path: Path) -> None:
    save_weights(STATE, tmp_path / "w.safetensors")
    loaded = load_weights(tmp_path / "w.safetensors")
    assert {key: loaded[key] for key in ("format", "placer", "config")} == {
        key: STATE[key] for key in ("format", "placer", "config")
    }
    for name, value in STATE["best_parameters"].items():
        np.testing.assert_array_equal(loaded["best_parameters"][name], value)


def test_what_is_no_weights_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(STATE, path)
    whole = path.read_bytes()
    for content in (b"", b"{}", whole[:-1], whole[:40], whole.replace(b"placeto", b"Placeto", 1)):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match="w"):
            load_weights(path)
        with pytest.raises(CheckpointError, match="w"):
            load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_weights(tmp_path / "none.safetensors")


def test_checkpoints_may_be_weights_files(tmp_path: Path) -> None:
    save_checkpoint({**load_checkpoint("pretrained")}, tmp_path / "again.safetensors")
    first, again = load_checkpoint("pretrained"), load_checkpoint(tmp_path / "again.safetensors")
    assert first["config"] == again["config"]
    assert all((again["best_parameters"][name] == value).all() for name, value in first["best_parameters"].items())
