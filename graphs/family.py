"""A family of graphs: models drawn from one space, split into training, validation and test graphs.

torch is imported where a model is built or captured: a graph that ships with the package is read without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

    Graph ``index`` of a split is drawn from a generator of its own, seeded by (family, split, index), so the
    splits have no model in common and a graph stays the same when a split grows.
    """

    name: str
    description: str  # one sentence
    sample: Callable[[np.random.Generator], TrainingStep]  # draws a model with its inputs, on the default device
    splits: Mapping[str, int] = field(default_factory=lambda: SPLITS)  # number of graphs of each split
    data: Path | None = None  # folder of {name}.zip, which has all graphs; None = each is captured when it is loaded

    def build(self, split: str, index: int, device: str = "meta") -> TrainingStep:
        """Build the model of a graph, with inputs of the right shapes; on "meta" nothing is allocated.

        Raises:
            ValueError: there is no such split or index.
        """
        import torch

        graph_name(self, split, index)  # raises if there is no such graph
        seed = [crc32(self.name.encode()), crc32(split.encode()), index]
        with torch.device(device):
            return self.sample(np.random.default_rng(seed))

    def capture(self, split: str, index: int) -> ComputationGraph:
        """Capture a graph anew (seconds).

        Raises:
            ValueError: there is no such split or index.
        """
        return self.build(split, index).capture(graph_name(self, split, index))

    def load(self, split: str, index: int) -> ComputationGraph:
        """Load a graph, the same as `capture` gives, in milliseconds: from `data` or, if that is None, from the cache.

        A graph that isn't in the cache is captured first, and kept there: see `graphs.cache`.

        Raises:
            ValueError: there is no such split or index.
            FileNotFoundError: `data` has no file of the family.
            StoreError: the file in `data` lacks the graph, or is damaged.
        """
        name = graph_name(self, split, index)
        if self.data is not None:
            return store.load(self.data / f"{self.name}.zip", name)
        from graphs.capture_progress import capture_with_progress

        path = cache.location(self.sample.__module__, name)
        return cache.cached(path, lambda: capture_with_progress(self.build(split, index), name))


class HasSplits(Protocol):
    """The attributes of all kinds of families."""

    @property
    def name(self) -> str:
        """Name of the family."""

    @property
    def splits(self) -> Mapping[str, int]:
        """Number of graphs of each split."""


def graph_name(family: HasSplits, split: str, index: int) -> str:
    """Return the name of a graph of a family, e.g. "cifar10:test:3".

    Raises:
        ValueError: there is no such split or index.
    """
    if split not in family.splits:
        raise ValueError(f"family {family.name!r} has no split {split!r}; its splits: {', '.join(family.splits)}")
    if not 0 <= index < family.splits[split]:
        last = family.splits[split] - 1
        raise ValueError(f"{family.name}:{split} has graphs 0 to {last}, there is no {index}")
    return f"{family.name}:{split}:{index}"


def choice(rng: np.random.Generator, options: Any, weights: Any = None) -> Any:
    """Draw one of the options, each with equal probability or by weights, which need not sum to one."""
    probabilities = None if weights is None else np.asarray(weights, np.float64) / np.sum(weights)
    return options[int(rng.choice(len(options), p=probabilities))]
