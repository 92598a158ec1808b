"""Weights files."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

from placeto.errors import TrainingError
from placeto.policies.weights import load_weights, save_weights
from placeto.pretrained import pretrained_path
from placeto.training.checkpoint import load_checkpoint

STATE = {
    "format": "placeto.checkpoint/1",
    "placer": "placeto",
    "config": {"search": {"levels": (0.25, 1.0)}, "policy": {"rounds": 2}},
    "best_parameters": {
        "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1.5], np.float32),
        "c": np.array(2.0, np.float32),
    },
}


def test_round_trip(tmp_path: Path) -> None:
    save_weights(STATE, tmp_path / "w.safetensors")
    loaded = load_weights(tmp_path / "w.safetensors")
    assert {key: loaded[key] for key in ("format", "placer", "config")} == {
        key: STATE[key] for key in ("format", "placer", "config")
    }
    for name, value in STATE["best_parameters"].items():
        np.testing.assert_array_equal(loaded["best_parameters"][name], value)
        assert loaded["best_parameters"][name].shape == value.shape


def test_what_is_no_weights_file(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(STATE, path)
    whole = path.read_bytes()
    for content in (b"", b"{}", whole[:-1], whole[:40], whole.replace(b"placeto", b"Placeto", 1)):
        path.write_bytes(content)
        with pytest.raises(TrainingError, match="w"):
            load_weights(path)
        with pytest.raises(TrainingError, match="w"):
            load_checkpoint(path)
    with pytest.raises(FileNotFoundError):
        load_weights(tmp_path / "none.safetensors")


@pytest.mark.parametrize("file", ["saved", "shipped"])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path, file: str) -> None:
    path, random = tmp_path / "w.safetensors", np.random.default_rng(0)
    save_weights(STATE, path)
    shipped = pretrained_path("placeto")
    assert shipped is not None
    whole = (path if file == "saved" else shipped).read_bytes()
    for place in range(len(whole)) if file == "saved" else random.integers(len(whole), size=300).tolist():
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"w\.safetensors: "):
            load_weights(path)


def test_other_values_are_found_under_an_old_checksum(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(STATE, path)
    with safe_open(path, framework="numpy") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in STATE["best_parameters"]}
    path.write_bytes(save(tensors, metadata))
    assert load_weights(path)["placer"] == "placeto"
    changes = [
        (tensors, metadata | {"placeto": metadata["placeto"].replace("placeto", "gdp")}),
        (tensors | {"b": np.float32([1.25])}, metadata),
        (tensors | {"a.weight": tensors["a.weight"].reshape(3, 2)}, metadata),
        ({**tensors, "a": tensors["a.weight"]}, metadata),
        (tensors | {"d": np.zeros(0, np.float32)}, metadata),
        (tensors, {"Placeto": "no", **metadata}),
        (tensors, {"placeto": metadata["placeto"]}),
    ]
    for others in changes:
        path.write_bytes(save(*others))
        with pytest.raises(TrainingError, match="damaged: its checksum isn't that of its content"):
            load_weights(path)
