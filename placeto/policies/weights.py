"""Weights files: what a placer needs of a trained policy, readable without torch (``.safetensors``).

The tensors are the parameters; a checkpoint's plain values, its settings among them, are JSON in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from placeto.problem.files import atomic_write

SUFFIX = ".safetensors"
_KEY, _PARAMETERS = "placeto", "best_parameters"


class WeightsError(ValueError):
    """A file that holds no weights of a policy."""


def load_weights(path: str | Path) -> dict[str, Any]:
    """A checkpoint's plain values, and its ``best_parameters`` as float32 arrays by name.

    Raises:
        WeightsError: it is no such file, or it is damaged.
        OSError: it can't be read.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_KEY)
            parameters = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        state = json.loads(text) if text is not None else None
    except (SafetensorError, ValueError, TypeError, RecursionError) as problem:
        raise WeightsError(f"{path}: not a file of weights ({' '.join(str(problem).split())[:120]})") from None
    if not isinstance(state, dict):
        raise WeightsError(f"{path}: holds no policy of Placeto")
    return {key: _with_tuples(value) for key, value in state.items()} | {_PARAMETERS: parameters}


def save_weights(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a checkpoint's plain values and its ``best_parameters``; other tensors are not allowed."""
    plain = {key: value for key, value in state.items() if key != _PARAMETERS}
    parameters = {name: np.ascontiguousarray(value, np.float32) for name, value in state[_PARAMETERS].items()}
    with atomic_write(Path(path)) as temporary:
        temporary.write_bytes(save(parameters, {_KEY: json.dumps(plain)}))


def _with_tuples(value: Any) -> Any:
    """JSON has no tuples, settings have no lists."""
    if isinstance(value, list):
        return tuple(_with_tuples(item) for item in value)
    return {key: _with_tuples(item) for key, item in value.items()} if isinstance(value, dict) else value
