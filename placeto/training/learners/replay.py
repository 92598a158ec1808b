"""Labelled states that the supervised stage remembers, so that each gradient step fits states of many graphs.

Legend: R remembered states, T moves, B episodes (or states drawn), G groups of the largest training problem, L labelled
moves a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from placeto.errors import TrainingError
from placeto.training.rollout import MISSING, Labels, Rollout

Arrays = dict[str, np.ndarray]
"""Fields of states, by name: "index" (...), the training problem; "placement" and "visited" (..., G); and those of
their labels, "group", "device" and "change" (..., L)."""

_LABEL = "group", "device", "change"


def empty_states(shape: tuple[int, ...], groups: int, labels: int) -> Arrays:
    """Make arrays for states in the given shape, whose labels are all `MISSING`."""
    return {
        "index": np.zeros(shape, np.int32),
        "placement": np.zeros((*shape, groups), np.int16),
        "visited": np.zeros((*shape, groups), bool),
        "group": np.zeros((*shape, labels), np.int32),
        "device": np.full((*shape, labels), MISSING, np.int16),
        "change": np.zeros((*shape, labels), np.float32),
    }


def labelled_states(episodes: Rollout, groups: int, labels: int) -> Arrays:
    """Return the (T, B) states of labelled episodes, with room for `groups` groups and `labels` labels each."""
    index = episodes.end.index
    states = empty_states((len(episodes.data), len(index)), groups, labels)
    states["index"][:] = index
    for t, (data, label) in enumerate(zip(episodes.data, episodes.labels, strict=True)):
        of, local = data.batch.numpy(), data.local.numpy()
        states["placement"][t, of, local] = data.current.numpy()
        states["visited"][t, of, local] = data.marked.numpy()
        group = label.slot.view(len(index), -1) - data.first[:, None]
        for name, values in zip(_LABEL, (group, label.device, label.change), strict=True):
            states[name][t, :, : group.shape[1]] = values.view(group.shape).numpy()
    return states


class Replay:
    """Remembers the last R labelled states. Its length is the number of states that it has.

    Args:
        size: R.
        groups: (C,) groups of each training problem.
        devices: (C,) devices of each training problem.
        labels: L.
    """

    def __init__(self, size: int, groups: ArrayLike, devices: ArrayLike, labels: int) -> None:
        self.groups, self.devices = np.array(groups), np.array(devices)
        self.states = empty_states((size,), int(self.groups.max()), labels)
        self.added = 0  # number of all states that were ever added

    def __len__(self) -> int:
        return min(self.added, len(self.states["index"]))

    def add(self, states: Arrays) -> None:
        """Remember (T, B) states, in the order of their moves. They replace the oldest states."""
        count = states["index"].size
        rows = (self.added + np.arange(count)) % len(self.states["index"])
        for name, values in states.items():
            self.states[name][rows] = values.reshape(count, *values.shape[2:])
        self.added += count

    def placed(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return training problem (B,), placement (B, G) and visited groups (B, G) of remembered states `rows` (B,)."""
        states = self.states
        return (
            states["index"][rows].astype(np.int64),
            states["placement"][rows].astype(np.int64),
            states["visited"][rows],
        )

    def labels(self, rows: np.ndarray, first: Tensor) -> Labels:
        """Return the labels of the remembered states `rows` (B,), without missing ones.

        Their nodes are those of an observation of these states, in which `first` (B,) is the first node of each state.
        """
        group, device, change = (torch.from_numpy(self.states[name][rows]) for name in _LABEL)
        return Labels((first[:, None] + group).flatten(), device.long().flatten(), change.flatten()).there()

    def saved(self) -> dict[str, Any]:
        """Return the remembered states, for a checkpoint."""
        return {
            "added": self.added,
            **{name: torch.from_numpy(values[: len(self)]) for name, values in self.states.items()},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the states that `saved` returned.

        Raises:
            TrainingError: they aren't states of the training problems, or not as many as were remembered.
        """
        self.added = saved["added"]
        states = {name: saved[name].numpy() for name in self.states}
        count, index = len(self), states["index"]
        if any(len(values) != count for values in states.values()) or not _all_in(index, 0, len(self.groups)):
            raise TrainingError("the remembered states are of other problems")
        groups, devices = self.groups[index][:, None], self.devices[index][:, None]
        labelled = np.where(states["device"] == MISSING, 0, states["group"])
        there = _all_in(states["placement"], 0, devices) and _all_in(states["device"], MISSING, devices)
        if not (there and _all_in(labelled, 0, groups)):
            raise TrainingError("the remembered states have groups or devices that the problems don't have")
        for name, values in self.states.items():
            values[:count] = states[name]


def _all_in(values: np.ndarray, least: int, beyond: int | np.ndarray) -> bool:
    return bool(((values >= least) & (values < beyond)).all())
