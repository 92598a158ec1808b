"""Checks of settings in dataclasses, which come from the command line, a script or a checkpoint."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch

from placeto.errors import TrainingError
from placeto.problem.checks import checked, record_of


def check_settings(settings: Any, prefix: str = "") -> None:
    """Refuse values of another type than their field's, numbers that aren't finite, and numbers out of their range.

    Args:
        settings: an instance of a dataclass, which may contain others.
        prefix: what is put before the names of the fields in messages.

    Raises:
        TrainingError: there is such a value; the message names the fields.
    """
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    record = record_of(type(settings))  # type: ignore[arg-type]
    checked(values, record, TrainingError, prefix.removesuffix("."), strict=True)
    for name, value in values.items():
        if is_dataclass(value):
            check_settings(value, f"{prefix}{name}.")


def check_device(device: str) -> None:
    """Refuse a torch device that this machine doesn't have, or that is neither a CPU nor a CUDA GPU.

    Raises:
        TrainingError: it is such a device.
    """
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise TrainingError(f"device must be cpu or cuda, not {device!r}")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise TrainingError(f"device {device}: torch finds {torch.cuda.device_count()} GPUs here; cpu is always there")
