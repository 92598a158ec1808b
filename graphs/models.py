"""Families of published models: sizes from a grid, captured when they are first loaded, and kept in a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain
from types import MappingProxyType
from typing import Any

from graphs import cache
from graphs.family import graph_name
from graphs.training_step import TrainingStep
from placeto.problem.graph import ComputationGraph

SIZES = MappingProxyType({"train": 12, "validation": 4, "test": 8})


@dataclass(frozen=True)
class ModelFamily:
    """Training steps of one published model in many sizes.

    Every network is in one split only. No graphs ship with the package: a graph is captured when it is first loaded,
    which takes seconds to minutes, and is read from the cache from then on (`graphs.cache`).
    """

    name: str
    description: str  # one sentence
    step: Callable[[Any], TrainingStep]  # makes the training step of a network, on the default device
    networks: Mapping[str, tuple[Any, ...]]  # split -> sizes of its networks, which are frozen dataclasses
    endless: tuple[str, ...] = ()  # no split has more graphs

    @property
    def splits(self) -> Mapping[str, int]:
        """Number of graphs of each split."""
        return {split: len(networks) for split, networks in self.networks.items()}

    def build(self, split: str, index: int, device: str = "meta") -> TrainingStep:
        """Build the model of a graph, with inputs of the right shapes; on "meta" nothing is allocated.

        Raises:
            ValueError: there is no such split or index.
        """
        import torch

        graph_name(self, split, index)  # raises if there is no such graph
        with torch.device(device):
            return self.step(self.networks[split][index])

    def capture(self, split: str, index: int) -> ComputationGraph:
        """Capture a graph anew (seconds to minutes).

        Raises:
            ValueError: there is no such split or index.
        """
        return self.build(split, index).capture(graph_name(self, split, index))

    def load(self, split: str, index: int) -> ComputationGraph:
        """Load a graph from the cache; a graph that isn't there is captured first, with a progress bar.

        Raises:
            ValueError: there is no such split or index.
        """
        from graphs.capture_progress import capture_with_progress

        name = graph_name(self, split, index)
        path = cache.location(self.step.__module__, repr(self.networks[split][index]))
        graph = cache.cached(path, lambda: capture_with_progress(self.build(split, index), name))
        return replace(graph, name=name)  # the same network may have another name in another family


def deal(first: Sequence[Any], grid: Iterable[Any], sizes: Mapping[str, int] = SIZES) -> Mapping[str, tuple[Any, ...]]:
    """Deal networks out to splits, each network to one split.

    Args:
        first: networks of published sizes; the last split, that of the test graphs, begins with them.
        grid: all other networks, dealt in an order that looks random but never changes; those left over aren't used.
        sizes: how many networks each split gets.

    Raises:
        ValueError: there are fewer networks than the splits need.

    >>> {split: networks for split, networks in deal("a", "abcdef", {"train": 2, "test": 2}).items()}
    {'train': ('c', 'd'), 'test': ('a', 'e')}
    """
    others = set(grid) - set(first)
    if len(first) + len(others) < sum(sizes.values()):
        raise ValueError(f"the splits need {sum(sizes.values())} networks, not {len(first) + len(others)}")
    left = [*first, *sorted(others, key=lambda network: sha256(repr(network).encode()).digest())]
    dealt: dict[str, tuple[Any, ...]] = {}
    for split, size in reversed(list(sizes.items())):
        dealt[split], left = tuple(left[:size]), left[size:]
    return MappingProxyType({split: dealt[split] for split in sizes})


def by_turns(name: str, description: str, families: Sequence[ModelFamily]) -> ModelFamily:
    """Return a family of the members of several families of one model, by turns: the first of each, the second, ..."""
    networks = {
        split: tuple(chain.from_iterable(zip(*(family.networks[split] for family in families), strict=True)))
        for split in families[0].networks
    }
    return ModelFamily(name, description, families[0].step, MappingProxyType(networks))
