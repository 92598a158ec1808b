"""Changes to torch's activation checkpoints while a module is traced.

Reentrant checkpoints are traced as non-reentrant ones. Their gradients are the same, but `torch.autograd.grad`, which
computes the gradients of given tensors, works with non-reentrant checkpoints only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import cache, partial, wraps
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint as checkpoints
from torch import Tensor

from placeto.errors import CaptureError

Function = Callable[..., Any]
Steps = Callable[[Function], Generator[None, None, None]]
_STEPS = "_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator"
"""Names of torch's generator for the steps of a non-reentrant checkpoint: in torch 2.14, and before."""


class _WithoutReentry:
    """Stands in for torch's autograd function of reentrant checkpoints."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        if not any(isinstance(value, Tensor) and value.requires_grad for value in args):
            with torch.no_grad():  # a reentrant checkpoint gives no gradients then
                return function(*args)
        how: Any = {"preserve_rng_state": preserve, "early_stop": False}  # it computes all of the function again
        return checkpoints.checkpoint(function, *args, use_reentrant=False, **how)


def without_reentrant_checkpoints() -> AbstractContextManager[Any]:
    """A context in which reentrant checkpoints are run as non-reentrant ones."""
    return patch.object(checkpoints, "CheckpointFunction", _WithoutReentry)


def recomputing_within(context: Callable[[], AbstractContextManager[None]]) -> AbstractContextManager[Any]:
    """While this is open, checkpoints are made so that they later recompute within a context that `context` makes.

    When a checkpoint recomputes, torch restores its own autocast, but no `TorchFunctionMode`: `torch.autograd.grad`
    switches these off.
    """

    def steps_in_context(function: Function, preserve: bool, steps: Steps) -> Generator[None, None, None]:
        def again(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        return steps(again)

    return checkpointing_by(steps_in_context)


def checkpointing_by(
    make: Callable[[Function, bool, Steps], Generator[None, None, None]],
) -> AbstractContextManager[Any]:
    """While this is open, torch's non-reentrant checkpoints take other steps than torch's own.

    Args:
        make: called with the function of a checkpoint, whether it restores random numbers, and torch's own steps for a
            function of the same arguments; returns the steps, a generator that yields once, for the first pass.

    Raises:
        CaptureError: this release of torch makes checkpoints in another way than any that is known.
    """
    name = _name_of_steps()
    original = getattr(checkpoints, name)
    signature = inspect.signature(original)

    @wraps(original)  # which keeps its signature, for contexts within this one
    def replaced(function: Function, *args: Any, **kwargs: Any) -> Generator[None, None, None]:
        bound = signature.bind(function, *args, **kwargs)
        bound.apply_defaults()
        return make(function, bound.arguments["preserve_rng_state"], lambda run: original(run, *args, **kwargs))

    return patch.object(checkpoints, name, replaced)


@cache
def _name_of_steps() -> str:
    """The name of torch's generator for the steps of a checkpoint: one is made by a function that stands in for it."""
    for name in filter(partial(hasattr, checkpoints), _STEPS):
        reached = list[bool]()
        with patch.object(checkpoints, name, lambda *_, reached=reached, **__: iter([reached.append(True)])):
            checkpoints.checkpoint(int, use_reentrant=False)
        if reached:
            return name
    raise CaptureError(
        f"activation checkpoints of torch {torch.__version__} can't be traced, as it makes them in a new way: install "
        "torch 2.13 or 2.14, with which Placeto was tested"
    )
