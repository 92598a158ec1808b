"""Checkpoints: one plain dict in one file, written atomically, loaded without running code from it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

FORMAT = "placeto.checkpoint/1"
FILE_NAME = "checkpoint.pt"


class CheckpointError(ValueError):
    """A file that is no checkpoint, or one that doesn't match what it is used for."""


def checkpoint_path(path: str | Path) -> Path:
    """Path of the checkpoint file; a directory is taken as a run, which holds ``checkpoint.pt``.

    "pretrained" is the one that comes with the package, unless there is such a file or directory.
    """
    path = Path(path)
    if str(path) == "pretrained" and not path.exists():
        return Path(__file__).parent / "pretrained" / "placeto.pt"
    return path / FILE_NAME if path.is_dir() else path


def save_checkpoint(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a dict of plain values and tensors, so that a crash leaves either the old file or the new one.

    "format" is added to it. Plain values are dicts, lists, strings, numbers, booleans and None.

    Raises:
        OSError: the file can't be written.
    """
    path = checkpoint_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            torch.save({"format": FORMAT, **state}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load_checkpoint(path: str | Path, device: str = "cpu") -> dict[str, Any]:
    """Read a checkpoint file, or the one of a run directory.

    Raises:
        CheckpointError: there is no such file, or it is no checkpoint.
    """
    path = checkpoint_path(path)
    if not path.is_file():
        where = f"run directory {path.parent} has no {FILE_NAME}" if path.name == FILE_NAME else f"{path}: no such file"
        raise CheckpointError(f"{where}; give a checkpoint, or the --out directory of `placeto train`")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError, AttributeError, OSError) as problem:
        reason = str(problem).strip().split("\n")[0][:120]
        raise CheckpointError(f"{path}: not a checkpoint ({reason})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f'{path}: not a checkpoint: "format" must be "{FORMAT}"')
    return state


def capture_random(generators: Sequence[np.random.Generator | torch.Generator] = ()) -> dict[str, Any]:
    """State of torch's global generator and of the given ones, as plain values for a checkpoint."""
    return {"torch": torch.get_rng_state(), "generators": [_capture(generator) for generator in generators]}


def restore_random(state: Mapping[str, Any], generators: Sequence[np.random.Generator | torch.Generator] = ()) -> None:
    """Put back what `capture_random` took; the generators come in the same order.

    Raises:
        CheckpointError: the checkpoint holds another number or kind of generators.
    """
    saved = state["generators"]
    if len(saved) != len(generators):
        raise CheckpointError(f"the checkpoint holds {len(saved)} random generators, not {len(generators)}")
    torch.set_rng_state(state["torch"])
    for generator, value in zip(generators, saved, strict=True):
        if isinstance(generator, torch.Generator) != isinstance(value, torch.Tensor):
            raise CheckpointError("the checkpoint holds random generators of another kind")
        if isinstance(generator, torch.Generator):
            generator.set_state(value)
        else:
            generator.bit_generator.state = _from_plain(value)


def _capture(generator: np.random.Generator | torch.Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return _to_plain(generator.bit_generator.state)


def _to_plain(value: Any) -> Any:
    """Numpy's generator state with 128-bit integers as strings, which survive ``weights_only``."""
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return {"integer": str(int(value))}
    return value


def _from_plain(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if set(value) == {"integer"}:
        return int(value["integer"])
    if set(value) == {"array", "dtype"}:
        return np.array(value["array"], value["dtype"])
    return {key: _from_plain(item) for key, item in value.items()}
