"""Random numbers that a traced step would not draw as the module does.

Numbers from Python's and numpy's random are constants in a trace, or decide which branch is traced: every step would
have the same. If forward seeds torch's generator, a traced step would not do so. If forward makes or seeds a generator
of its own, a traced step would go on drawing from the generator that it had when it was traced.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule
from torch.utils._mode_utils import no_dispatch

from placeto.capture.errors import CaptureError


class OutsideRandom:
    """The states of the generators of the modules `random` and `numpy.random`, as they were when this was made."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)

    def changed(self) -> bool:
        """Whether numbers have been drawn from them since then."""
        return random.getstate() != self._python or _key(np.random.get_state(legacy=False)) != _key(self._numpy)

    def restore(self) -> None:
        """Put both generators back into these states."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)


class Seeds:
    """A context manager that stands in for torch's default generator and notes the seeds that it is given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def __enter__(self) -> Seeds:
        self._generator = torch.random.default_generator
        vars(torch.random)["default_generator"] = self
        return self

    def __exit__(self, *details: object) -> None:
        vars(torch.random)["default_generator"] = self._generator

    def manual_seed(self, seed: int) -> torch.Generator:
        """Note the seed, and seed torch's default generator with it."""
        self.given.append(seed)
        return self._generator.manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def check_generators(traced: GraphModule, again: Callable[[], GraphModule], name: str) -> None:
    """Refuse steps whose ops draw from a generator of the module that forward makes or seeds.

    Args:
        traced: the step.
        again: traces the step once more.
        name: the name of the graph, for the message.

    Raises:
        CaptureError: forward makes or seeds such a generator.
    """
    given = _generators(traced)
    if not given:
        return
    with no_dispatch():  # the states are tensors with values, which a trace doesn't have
        before = [generator.get_state() for generator in given]
        for generator in given:
            generator.seed()
        seeded = [generator.get_state() for generator in given]
    try:
        same = _generators(again()) == given  # the same objects
        with no_dispatch():
            kept = all(torch.equal(one.get_state(), other) for one, other in zip(given, seeded, strict=True))
    finally:
        with no_dispatch():
            for generator, state in zip(given, before, strict=True):
                generator.set_state(state)
    if not (same and kept):
        raise CaptureError(
            f"{name}: forward makes or seeds a torch.Generator, and a placed step would draw on from the one of the "
            "capture: make it once, when the module is made, or leave it out of forward"
        )


def _generators(traced: GraphModule) -> list[torch.Generator]:
    """The generators that a module gives to its ops, in the order in which the ops draw."""
    values = (value for node in traced.graph.nodes for value in (*node.args, *node.kwargs.values()))
    return [value for value in values if isinstance(value, torch.Generator)]


def _key(state: Any) -> tuple[bytes, int]:
    return state["state"]["key"].tobytes(), state["state"]["pos"]
