"""A family of graphs: models drawn from one space, split into training, validation and test graphs.

torch is imported where a model is built or captured: a graph that ships with the package is read without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from graphs import cache, store
from graphs.training_step import TrainingStep
from placeto.problem.graph import ComputationGraph

SPLITS = MappingProxyType({"train": 32, "validation": 8, "test": 32})


@dataclass(frozen=True)
class Family:
    """Training steps of models drawn at random from one space.

    Graph ``index`` of a split is drawn from a generator of its own, seeded by (family, split, index), so a graph stays
    the same when a split grows. `load` also makes training graphs after the last one of `splits`, as many as one likes.
    """

    name: str
    description: str  # one sentence
    sample: Callable[[np.random.Generator], TrainingStep]  # draws a model with its inputs, on the default device
    splits: Mapping[str, int] = field(default_factory=lambda: SPLITS)  # number of graphs of each split
    data: Path | None = None  # folder of {name}.zip with these graphs; None = each is captured when it is loaded
    endless: tuple[str, ...] = ("train",)  # splits that have more graphs than `splits` says

    def build(self, split: str, index: int, device: str = "meta", again: int = 0) -> TrainingStep:
        """Build the model of a graph, with inputs of the right shapes; on "meta" nothing is allocated.

        With another number `again`, another model is drawn in its place.

        Raises:
            ValueError: there is no such split or index.
        """
        import torch

        graph_name(self, split, index)  # raises if there is no such graph
        seed = [crc32(self.name.encode()), crc32(split.encode()), index, *([again] if again else [])]
        with torch.device(device):
            return self.sample(np.random.default_rng(seed))

    def capture(self, split: str, index: int) -> ComputationGraph:
        """Capture a graph anew (seconds).

        Raises:
            ValueError: there is no such split or index.
        """
        return self.build(split, index).capture(graph_name(self, split, index))

    def load(self, split: str, index: int) -> ComputationGraph:
        """Load a graph in milliseconds: from `data`, or from the cache.

        A graph that is in neither is captured first, and kept in the cache: see `graphs.cache`. After the last graph of
        `splits`, a model that is also in another split is drawn again, so that nobody trains on what a test asks.

        Raises:
            ValueError: there is no such split or index.
            FileNotFoundError: `data` has no file of the family.
            StoreError: the file in `data` lacks the graph, or is damaged.
        """
        name, drawn = graph_name(self, split, index), index >= self.splits[split]
        if self.data is not None and not drawn:
            return store.load(self.data / f"{self.name}.zip", name)
        for again in itertools.count():
            graph = self._cached(split, index, again)
            if not drawn or graph.likeness not in self._held_out:
                return graph
        raise AssertionError("a count ends")

    def _cached(self, split: str, index: int, again: int) -> ComputationGraph:
        from graphs.capture_progress import capture_with_progress

        name = graph_name(self, split, index)
        path = cache.location(self.sample.__module__, f"{name} {again}" if again else name)
        return cache.cached(path, lambda: capture_with_progress(self.build(split, index, again=again), name))

    @cached_property
    def _held_out(self) -> frozenset[str]:
        """The likeness of each graph of a split that has an end."""
        return frozenset(
            self.load(split, index).likeness
            for split, size in self.splits.items()
            if split not in self.endless
            for index in range(size)
        )


class HasSplits(Protocol):
    """The attributes of all kinds of families."""

    @property
    def name(self) -> str:
        """Name of the family."""

    @property
    def splits(self) -> Mapping[str, int]:
        """Number of graphs of each split."""

    @property
    def endless(self) -> tuple[str, ...]:
        """Splits that have more graphs."""


def graph_name(family: HasSplits, split: str, index: int) -> str:
    """Return the name of a graph of a family, e.g. "cifar10:test:3".

    Raises:
        ValueError: there is no such split or index.
    """
    if split not in family.splits:
        raise ValueError(f"family {family.name!r} has no split {split!r}; its splits: {', '.join(family.splits)}")
    if index < 0 or (index >= family.splits[split] and split not in family.endless):
        last = family.splits[split] - 1
        raise ValueError(f"{family.name}:{split} has graphs 0 to {last}, there is no {index}")
    return f"{family.name}:{split}:{index}"


def choice(rng: np.random.Generator, options: Any, weights: Any = None) -> Any:
    """Draw one of the options, each with equal probability or by weights, which need not sum to one."""
    probabilities = None if weights is None else np.asarray(weights, np.float64) / np.sum(weights)
    return options[int(rng.choice(len(options), p=probabilities))]
