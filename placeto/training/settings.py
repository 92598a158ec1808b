"""Check dataclasses of settings, wherever they come from: the command line, a script, a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

_LARGEST = 2**63  # of whole numbers


class ConfigError(ValueError):
    """A setting out of its range; the message names it and says what would be valid."""


def check_settings(settings: Any, ranges: Mapping[str, tuple[float, float]], prefix: str = "") -> None:
    """Refuse values of another type than their field's, numbers that aren't finite, and those out of their ranges.

    Args:
        settings: a dataclass, which may hold others.
        ranges: smallest and largest value by name, e.g. "learning.lr".
        prefix: of the names.

    Raises:
        ConfigError: the first such value.
    """
    for name, hint, value in _fields(settings, prefix):
        if not _fits(value, hint):
            raise ConfigError(f"{name} must be {_described(hint)}, not {value!r:.60}")
        if isinstance(value, tuple):
            for item in value:
                _check_number(name, item, ranges)
        elif not isinstance(value, bool) and isinstance(value, int | float):
            _check_number(name, value, ranges)


def _check_number(name: str, value: float, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuse a number that is not finite, or out of its range."""
    if not (math.isfinite(value) if isinstance(value, float) else abs(value) < _LARGEST):
        raise ConfigError(f"{name} must be {'finite' if isinstance(value, float) else 'below 2^63'}, "
                          f"not {value!s:.60}")  # fmt: skip
    low, high = ranges.get(name, (-math.inf, math.inf))
    if not low <= value <= high:
        bound = f"at least {low:g}" if value < low else f"at most {high:g}"
        raise ConfigError(f"{name} must be {bound}, not {value}")


def _fields(settings: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and value of each setting, those of inner dataclasses too."""
    for name, hint in get_type_hints(type(settings)).items():
        value = getattr(settings, name)
        yield prefix + name, hint, value
        if is_dataclass(value):
            yield from _fields(value, f"{prefix}{name}.")


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    kinds = get_args(hint) or (hint,)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))


def _described(hint: Any) -> str:
    kinds = get_args(hint) or (hint,)
    return " or ".join("none" if kind is type(None) else getattr(kind, "__name__", repr(kind)) for kind in kinds)


def check_device(device: str) -> None:
    """Refuse a device of networks that isn't here.

    Raises:
        ConfigError: it isn't.
    """
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise ConfigError(f"device must be cpu or cuda, not {device!r}")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {device}: torch finds {torch.cuda.device_count()} GPUs here; cpu is always there")
