"""Checkpoints as a trace needs them.

Reentrant ones are traced as the other kind: gradients are the same, and only those can be asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint as checkpoints
from torch import Tensor

from placeto.capture.meanwhile import meanwhile


class _WithoutReentry:
    """Stands in for torch's autograd function of reentrant checkpoints."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if not any(isinstance(value, Tensor) and value.requires_grad for value in args):
            with torch.no_grad():  # what a reentrant checkpoint comes to
                return function(*args)
        return checkpoints.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)


def without_reentrant_checkpoints() -> AbstractContextManager[None]:
    """While this is open, checkpoints aren't reentrant."""
    return checkpointing_by(_WithoutReentry, "CheckpointFunction")


def recomputing_within(context: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """Checkpoints that are made while this is open compute again within a context, when and wherever they do.

    torch restores its own autocast for that, but no mode for functions: `torch.autograd.grad` runs with them off.
    """
    original = checkpoints._checkpoint_without_reentrant_generator

    def made(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def again(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        return original(again, *args, **kwargs)

    return checkpointing_by(made)


def checkpointing_by(made: Any, name: str = "_checkpoint_without_reentrant_generator") -> AbstractContextManager[None]:
    """While this is open, torch's checkpoints use `made` in place of their own function of that name."""
    return meanwhile(partial(setattr, checkpoints, name), made, getattr(checkpoints, name))
