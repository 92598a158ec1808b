"""Labelled states that the supervised stage remembers, so that a gradient step sees states of many graphs.

Legend: R remembered states, T moves, B episodes (or states drawn), G groups of the largest training problem, L labelled
moves a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placeto.training.rollout import MISSING, Labels, Rollout

Arrays = dict[str, np.ndarray]
"""States by name: "index" training problem; "placement", "visited" (..., G); "group", "device", "change" (..., L)."""

_LABEL = "group", "device", "change"


def empty_states(shape: tuple[int, ...], groups: int, labels: int) -> Arrays:
    """Arrays for states in that shape, without labels yet."""
    return {
        "index": np.zeros(shape, np.int32),
        "placement": np.zeros((*shape, groups), np.int16),
        "visited": np.zeros((*shape, groups), bool),
        "group": np.zeros((*shape, labels), np.int32),
        "device": np.full((*shape, labels), MISSING, np.int16),
        "change": np.zeros((*shape, labels), np.float32),
    }


def labelled_states(episodes: Rollout, groups: int, labels: int) -> Arrays:
    """(T, B) states of labelled episodes."""
    index = episodes.end.index
    states = empty_states((len(episodes.data), len(index)), groups, labels)
    states["index"][:] = index
    for t, (data, found) in enumerate(zip(episodes.data, episodes.labels, strict=True)):
        of, local = data.batch.numpy(), data.local.numpy()
        states["placement"][t, of, local] = data.current.numpy()
        states["visited"][t, of, local] = data.marked.numpy()
        group = found.slot.view(len(index), -1) - data.first[:, None]
        for name, values in zip(_LABEL, (group, found.device, found.change), strict=True):
            states[name][t, :, : group.shape[1]] = values.view(group.shape).numpy()
    return states


class Replay:
    """The last R labelled states."""

    def __init__(self, size: int, groups: int, labels: int) -> None:
        self.states = empty_states((size,), groups, labels)
        self.added = 0  # states ever

    def __len__(self) -> int:
        return min(self.added, len(self.states["index"]))

    def add(self, states: Arrays) -> None:
        """Remember (T, B) states, in the order of moves; they take the place of the oldest."""
        count = states["index"].size
        rows = (self.added + np.arange(count)) % len(self.states["index"])
        for name, values in states.items():
            self.states[name][rows] = values.reshape(count, *values.shape[2:])
        self.added += count

    def placed(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Training problem (B,), placement (B, G) and visited (B, G) of some remembered states."""
        states = self.states
        return (
            states["index"][rows].astype(np.int64),
            states["placement"][rows].astype(np.int64),
            states["visited"][rows],
        )

    def labels(self, rows: np.ndarray, first: Tensor) -> Labels:
        """Their labels, in an observation in which `first` (B,) are their first nodes."""
        group, device, change = (torch.from_numpy(self.states[name][rows]) for name in _LABEL)
        return Labels((first[:, None] + group).flatten(), device.long().flatten(), change.flatten()).there()

    def saved(self) -> dict[str, Any]:
        """What is remembered, for a checkpoint."""
        return {
            "added": self.added,
            **{name: torch.from_numpy(values[: len(self)]) for name, values in self.states.items()},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Put back what `saved` gave."""
        self.added = saved["added"]
        for name, values in self.states.items():
            values[: len(self)] = saved[name].numpy()
