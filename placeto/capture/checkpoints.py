"""Changes to torch's activation checkpoints while a module is traced.

Reentrant checkpoints are traced as non-reentrant ones. Their gradients are the same, but `torch.autograd.grad`, which
computes the gradients of given tensors, works with non-reentrant checkpoints only.
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
            with torch.no_grad():  # a reentrant checkpoint gives no gradients then
                return function(*args)
        return checkpoints.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)


def without_reentrant_checkpoints() -> AbstractContextManager[None]:
    """A context in which reentrant checkpoints are run as non-reentrant ones."""
    return checkpointing_by(_WithoutReentry, "CheckpointFunction")


def recomputing_within(context: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """While this is open, checkpoints are made so that they later recompute within a context that `context` makes.

    When a checkpoint recomputes, torch restores its own autocast, but no `TorchFunctionMode`: `torch.autograd.grad`
    switches these off.
    """
    original = checkpoints._checkpoint_without_reentrant_generator

    def made(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def again(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        return original(again, *args, **kwargs)

    return checkpointing_by(made)


def checkpointing_by(made: Any, name: str = "_checkpoint_without_reentrant_generator") -> AbstractContextManager[None]:
    """While this is open, torch's checkpoints use `made` in place of the function or class of theirs with this name."""
    return meanwhile(partial(setattr, checkpoints, name), made, getattr(checkpoints, name))
