"""Checks of settings in dataclasses, which come from the command line, a script or a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import torch

from placeto.ranges import Range

_LARGEST = 2**63  # the size of whole numbers must be below


class ConfigError(ValueError):
    """A setting that can't be used; the message names it and says what would be valid."""


def check_settings(settings: Any, prefix: str = "") -> None:
    """Refuse values of another type than their field's, numbers that aren't finite, and numbers out of their range.

    Args:
        settings: an instance of a dataclass, which may contain others.
        prefix: what is put before the names of the fields in messages.

    Raises:
        ConfigError: there is such a value; the message is about the first one.
    """
    for name, hint, value in _fields(settings, prefix):
        if not _fits(value, hint):
            raise ConfigError(f"{name} must be {_described(hint)}, not {value!r:.60}")
        for item in value if isinstance(value, tuple) else (value,):
            if not isinstance(item, bool) and isinstance(item, int | float):
                _check_number(name, item, range_of(hint))


def range_of(hint: Any) -> Range:
    """Return the range that a type, its items or one of its alternatives is annotated with; else all numbers."""
    found = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Range)]
    found += [range_of(part) for part in get_args(hint) if get_origin(part) is Annotated]
    return found[0] if found else Range(-math.inf, math.inf)


def _check_number(name: str, value: float, limits: Range) -> None:
    """Refuse a number that is not finite, or out of its range."""
    if not (math.isfinite(value) if isinstance(value, float) else abs(value) < _LARGEST):
        raise ConfigError(f"{name} must be {'finite' if isinstance(value, float) else 'below 2^63'}, "
                          f"not {value!s:.60}")  # fmt: skip
    if not limits.low <= value <= limits.high:
        bound = f"at least {limits.low:g}" if value < limits.low else f"at most {limits.high:g}"
        raise ConfigError(f"{name} must be {bound}, not {value}")


def _fields(settings: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and value of each setting, and of those of inner dataclasses."""
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        yield prefix + name, hint, value
        if is_dataclass(value):
            yield from _fields(value, f"{prefix}{name}.")


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type, or of one of its alternatives. Whole numbers are also floats."""
    hint = _plain(hint)
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, get_args(hint)[0]) for item in value)
    kinds = tuple(map(_plain, get_args(hint))) or (hint,)
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))


def _plain(hint: Any) -> Any:
    """Return a type without its range."""
    return hint.__origin__ if get_origin(hint) is Annotated else hint


def _described(hint: Any) -> str:
    """Name a type, or its alternatives, for a message."""
    hint = _plain(hint)
    if get_origin(hint) is tuple:
        return f"a tuple of {_described(get_args(hint)[0])}s"
    kinds = tuple(map(_plain, get_args(hint))) or (hint,)
    return " or ".join("None" if kind is type(None) else getattr(kind, "__name__", repr(kind)) for kind in kinds)


def check_device(device: str) -> None:
    """Refuse a torch device that this machine doesn't have, or that is neither a CPU nor a CUDA GPU.

    Raises:
        ConfigError: it is such a device.
    """
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise ConfigError(f"device must be cpu or cuda, not {device!r}")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {device}: torch finds {torch.cuda.device_count()} GPUs here; cpu is always there")
