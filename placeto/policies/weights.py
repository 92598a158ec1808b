"""Weights files (``.safetensors``): what a placer needs of a trained policy, readable without torch.

The file's tensors are the parameters. Its metadata have the checkpoint's plain values as JSON, its settings among them,
and a checksum over the parameters and these values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from placeto.errors import TrainingError
from placeto.plumbing.terminal import printable
from placeto.problem.files import atomic_write

SUFFIX = ".safetensors"
_KEY, _CHECKSUM, _PARAMETERS = "placeto", "sha256", "best_parameters"


def load_weights(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint's plain values, and its ``best_parameters`` as float32 arrays by name.

    Raises:
        TrainingError: it is no weights file, or it is damaged: its checksum isn't that of its content.
        OSError: it can't be read.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            parameters = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        text = metadata.get(_KEY)
        state = json.loads(text) if text is not None else None
    except (SafetensorError, ValueError, TypeError, RecursionError) as problem:
        reason = printable(" ".join(str(problem).split())[:120])
        raise TrainingError(f"{path}: not a file of weights ({reason})") from None
    if not isinstance(state, dict):
        raise TrainingError(f"{path}: holds no policy of Placeto")
    _check(metadata, parameters, path)
    return {key: _with_tuples(value) for key, value in state.items()} | {_PARAMETERS: parameters}


def save_weights(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a checkpoint's plain values and its ``best_parameters`` to a weights file.

    Raises:
        TypeError: another value is no plain value, such as a tensor.
        OSError: the file can't be written.
    """
    plain = {key: value for key, value in state.items() if key != _PARAMETERS}
    parameters = {name: np.asarray(value, np.float32, order="C") for name, value in state[_PARAMETERS].items()}
    with atomic_write(Path(path)) as temporary:
        text = json.dumps(plain)
        temporary.write_bytes(save(parameters, {_KEY: text, _CHECKSUM: checksum(parameters, text)}))


def checksum(parameters: Mapping[str, np.ndarray], text: str) -> str:
    """Return the SHA-256 of a text and of arrays with their names, dtypes and shapes: 64 hex digits."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(parameters):
        array = parameters[name]
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _check(metadata: Mapping[str, str], parameters: Mapping[str, np.ndarray], path: str | Path) -> None:
    """Refuse a file with the wrong checksum, or with other metadata than `save_weights` writes.

    Raises:
        TrainingError: the file is damaged.
    """
    if metadata.keys() != {_KEY, _CHECKSUM} or metadata[_CHECKSUM] != checksum(parameters, metadata[_KEY]):
        raise TrainingError(f"{path}: damaged: its checksum isn't that of its content; take another copy")


def _with_tuples(value: Any) -> Any:
    """Replace lists inside a value by tuples: JSON has no tuples, and settings have no lists."""
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    return {key: _with_tuples(item) for key, item in value.items()} if isinstance(value, dict) else value
