"""Random numbers that a traced step would not draw as the module does.

Numbers from Python's and numpy's random are constants in a trace, or decide which branch is traced: every step would
have the same. If forward seeds torch's generator, a traced step would not do so. If forward draws from a generator of
its own, it may make or seed it as well. So such steps are placed, but not run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from placeto.capture.tracing.draws import draws

_UNUSUAL = 0x9E3779B97F4A7C15  # seed of torch's generator while a step is traced, that no forward is likely to give


class OutsideRandom:
    """The states of the generators of `torch`, `random` and `numpy.random`, as they were when this was made.

    Until they are put back, torch's has a seed of its own, so that it is seen if forward gives it another one.
    """

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)
        self._torch = torch.random.get_rng_state()
        torch.random.default_generator.manual_seed(_UNUSUAL)

    def refusal(self, traced: GraphModule) -> str:
        """Why a step that has been traced since then can't be run; "" if it draws all numbers as the module does."""
        now = np.random.get_state(legacy=False)
        if random.getstate() != self._python or _key(now) != _key(self._numpy):
            return (
                "forward draws numbers with Python's or numpy's random, and every step would have those of the "
                "capture: draw them with torch.rand and choose by torch.where"
            )
        if any(isinstance(value, torch.Generator) for node in traced.graph.nodes for value in _arguments(node)):
            return (
                "forward draws from a torch.Generator of its own, and a placed step draws from torch's: leave "
                "generator= out"
            )
        if torch.random.initial_seed() != _UNUSUAL and any(map(draws, traced.graph.nodes)):
            return (
                "forward seeds the random numbers of torch, and a placed step would not: leave torch.manual_seed out "
                "of forward"
            )
        return ""

    def restore(self) -> None:
        """Put all generators back into these states."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.random.set_rng_state(self._torch)


def _arguments(node: Node) -> Iterator[Any]:
    yield from node.args
    yield from node.kwargs.values()


def _key(state: Any) -> tuple[bytes, int]:
    return state["state"]["key"].tobytes(), state["state"]["pos"]
