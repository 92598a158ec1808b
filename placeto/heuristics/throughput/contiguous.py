"""The contiguous split with the least maximal load, by dynamic programming over ideals.

After Tarnawski et al., NeurIPS 2020. The units that the first devices hold together are an ideal (see `ideals`). The
next device takes the units that a larger ideal has beyond it. A state of the program is how many devices of each class
are used, and the ideal that they hold.

Let an ideal I lie within an ideal J. The load of a device with the units of J beyond I is the difference of their work,
plus the transfers of tensors that I or J splits. A tensor is split by an ideal if some of its producer and readers, but
not all, are in the ideal. A tensor that one of the two ideals splits is sent or received once. A tensor that both split
is sent or received once as well, unless neither its producer nor any reader is among the units of J beyond I. So the
transfers are a sum over I, plus a sum over J, minus a product of sparse matrices.

States that can't lead to a load below the best one so far are left out: ideals after which the other devices have more
work left than they can do in that time, and pairs of ideals whose difference is more work than that.

Legend: U units, T tensors, D devices, I ideals, C classes of equal devices, K columns of the factors.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix

from placeto.heuristics.throughput.stream import Stream

_PAIRS = 1_000_000  # pairs of ideals in one vectorised step
_MOST_STATES = 1000  # combinations of how many devices of each class are used; see `all_orders`
_SLACK = 1e-9  # share of a time by which rounding errors may change it


@dataclass(frozen=True)
class DeviceClass:
    """Devices with equal times, equal memory and equal `sends`."""

    devices: tuple[int, ...]
    speed: float  # upper bound of the work that one of them does in a time unit; work = time on the fastest device
    sends: bool  # whether transfers take their time; see `Stream.sends`


class OutOfTimeError(Exception):
    """Raised if the time is up before the dynamic program is done."""


class ContiguousSplits:
    """The contiguous splits of a stream whose borders are some ideals.

    Args:
        stream: the stream to split.
        cost_us: (T,) microseconds of each tensor, the same between all devices.
        ideals: (I, U) bool, all ideals or some of them, the empty one first and the full one last.
        below_us: only splits whose greatest load is smaller count.
    """

    def __init__(self, stream: Stream, cost_us: np.ndarray, ideals: np.ndarray, below_us: float = math.inf) -> None:
        self._stream, self._classes = stream, classes(stream)
        most_us = 1.0 + 2.0 * float(stream.time_us.max(axis=1).sum() + cost_us.sum())
        self._most_us = self._bound = min(below_us, most_us)
        self._states = _states(stream)
        self._done, self._cut = ideals @ stream.time_us.min(axis=1), np.zeros(len(ideals))
        useful = np.any([self._possible(used) for used in self._states], axis=0)
        useful[[0, -1]] = True
        self._ideals, self._done = ideals[useful], self._done[useful]
        self._work = self._ideals @ stream.time_us[:, [kind.devices[0] for kind in self._classes]]  # (I, C)
        self._memory = self._ideals @ stream.memory.astype(np.float64)
        self._cut, self._left, self._right = _transfers(stream, cost_us, self._ideals)
        padded = np.zeros((len(self._ideals), -(-stream.num_units // 64) * 64), bool)
        padded[:, : stream.num_units] = self._ideals
        self._bits = np.packbits(padded, axis=1).view(np.uint64)  # (I, U / 64)

    def best(self, below_us: float = math.inf, until: float = math.inf) -> tuple[np.ndarray | None, float]:
        """Find the split whose greatest load is least.

        If there are too many ways to mix the devices (see `all_orders`), all devices of a class follow each other.

        Args:
            below_us: only splits whose greatest load is smaller count.
            until: value of `time.perf_counter` at which to stop.

        Returns:
            (U,) device of each unit and the greatest load in microseconds; None and `below_us` if no split counts.

        Raises:
            OutOfTimeError: `until` has passed.
        """
        self._bound = min(below_us, self._most_us)
        load = {used: np.full(len(self._ideals), math.inf) for used in self._states}
        came = {used: np.full((len(self._ideals), 2), -1) for used in self._states}  # last class, ideal before
        load[self._states[0]][0] = 0.0
        best: tuple[int, ...] | None = None
        for used in self._states:
            for index in range(len(self._classes)):
                state = (*used[:index], used[index] + 1, *used[index + 1 :])
                if state not in load:
                    continue
                rows = np.flatnonzero((load[used] < self._bound) & self._possible(used))
                columns = np.flatnonzero(self._possible(state))
                self._extend(index, rows, columns, load[used], load[state], came[state], until)
                if load[state][-1] < self._bound:
                    best, self._bound = state, float(load[state][-1])
        return (None, below_us) if best is None else (self._traced(best, came), self._bound)

    def _possible(self, used: tuple[int, ...]) -> np.ndarray:
        """(I,) bool, whether used devices could hold an ideal, and the others the rest, all with loads below the bound.

        Args:
            used: (C,) how many devices of each class hold the ideal. Transfers of the tensors that the ideal splits
                count on each side on which all devices take time for them.
        """
        sides = np.zeros((2, len(self._done)))
        for kind, count in zip(self._classes, used, strict=True):
            sides[0] += count * kind.speed
            sides[1] += (len(kind.devices) - count) * kind.speed
        before, after = self._bound * sides + _SLACK * self._done[-1]
        free = [count > 0 and not kind.sends for kind, count in zip(self._classes, used, strict=True)]
        left = [count < len(kind.devices) and not kind.sends for kind, count in zip(self._classes, used, strict=True)]
        load_before = self._done + (0.0 if any(free) else self._cut)
        load_after = self._done[-1] - self._done + (0.0 if any(left) else self._cut)
        return np.asarray((load_before <= before) & (load_after <= after))

    def _extend(
        self,
        index: int,
        rows: np.ndarray,
        columns: np.ndarray,
        load: np.ndarray,
        new: np.ndarray,
        came: np.ndarray,
        until: float,
    ) -> None:
        """Add a device of a class to a state: lower `new` (I,), the greatest loads with it, where it helps.

        Args:
            index: number of the class.
            rows: ideals that the devices before it may hold.
            columns: ideals that the devices may hold together with it.
            load: (I,) us, least greatest load of the devices before it, for each ideal that they may hold.
            new: (I,) us, the same of all these devices; overwritten.
            came: (I, 2) class of the last device and number of the ideal before it; overwritten.
            until: value of `time.perf_counter` at which to stop.

        Raises:
            OutOfTimeError: `until` has passed.
        """
        work = self._work[:, index]
        rows, columns = rows[np.argsort(work[rows])], columns[np.argsort(work[columns])]
        slack, done = _SLACK * work[-1], 0
        while done < len(rows):
            if time.perf_counter() > until:
                raise OutOfTimeError
            begin = np.searchsorted(work[columns], work[rows[done]] - slack)
            some = rows[done : done + max(1, _PAIRS // max(1, len(columns) - int(begin)))]
            end = np.searchsorted(work[columns], work[some[-1]] + self._bound + slack, side="right")
            self._relax(index, some, columns[begin:end], load, new, came)
            done += len(some)

    def _relax(
        self, index: int, rows: np.ndarray, columns: np.ndarray, load: np.ndarray, new: np.ndarray, came: np.ndarray
    ) -> None:
        kind, work = self._classes[index], self._work[:, index]
        busy = work[columns] - work[rows, None]
        if kind.sends:
            both = (self._left[rows] @ self._right[columns].T).toarray()
            busy += self._cut[columns] + self._cut[rows, None] - both
        value = np.maximum(busy, load[rows, None])
        good = value < np.minimum(new[columns], self._bound)
        good &= self._memory[columns] - self._memory[rows, None] <= self._stream.capacity[kind.devices[0]]
        i, j = np.nonzero(good)
        inside = np.ones(len(i), bool)
        for word in self._bits.T:
            inside &= (word[rows[i]] & ~word[columns[j]]) == 0
        i, j = i[inside], j[inside]
        order = np.argsort(value[i, j], kind="stable")
        i, j = i[order], j[order]
        at, first = np.unique(j, return_index=True)
        new[columns[at]] = value[i[first], at]
        came[columns[at]] = np.stack([np.full(len(at), index), rows[i[first]]], axis=1)

    def _traced(self, used: tuple[int, ...], came: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
        placement, ideal = np.empty(self._stream.num_units, np.int64), len(self._ideals) - 1
        stages: list[tuple[int, np.ndarray]] = []
        while ideal:
            index, before = came[used][ideal].tolist()
            stages.append((index, self._ideals[ideal] & ~self._ideals[before]))
            used = (*used[:index], used[index] - 1, *used[index + 1 :])
            ideal = before
        free = [list(kind.devices) for kind in self._classes]
        for index, members in reversed(stages):
            placement[members] = free[index].pop(0)
        return placement


def all_orders(stream: Stream) -> bool:
    """Whether devices of different classes are tried in all orders: not if there are too many states."""
    return math.prod(len(kind.devices) + 1 for kind in classes(stream)) <= _MOST_STATES


def _states(stream: Stream) -> list[tuple[int, ...]]:
    """The states (C,): how many devices of each class are used, fewer first; see `all_orders`."""
    most = [len(kind.devices) for kind in classes(stream)]
    if all_orders(stream):
        return list(itertools.product(*(range(count + 1) for count in most)))
    filled = [(*most[:index], used) for index, count in enumerate(most) for used in range(count + 1)]
    return list(dict.fromkeys((*start, *[0] * (len(most) - len(start))) for start in filled))


def classes(stream: Stream) -> list[DeviceClass]:
    """Group the devices of a stream into classes of equal devices."""
    alike: dict[tuple[bytes, int, bool], list[int]] = {}
    for device, times in enumerate(stream.time_us.T):
        key = np.ascontiguousarray(times).tobytes(), int(stream.capacity[device]), bool(stream.sends[device])
        alike.setdefault(key, []).append(device)
    least = stream.time_us.min(axis=1)
    kinds = []
    for (_, _, sends), devices in alike.items():
        class_us = stream.time_us[:, devices[0]]
        speed = float((least[class_us > 0] / class_us[class_us > 0]).max(initial=0.0))
        kinds.append(DeviceClass(tuple(devices), speed, sends))
    return kinds


def _transfers(stream: Stream, cost_us: np.ndarray, ideals: np.ndarray) -> tuple[np.ndarray, csr_matrix, csr_matrix]:
    """Return the cost (I,) us of the tensors that each ideal splits, and two factors (I, K).

    Entry (i, j) of left @ right.T is what the sum of the costs of ideals i and j, i within j, has too much for tensors
    that both split.
    """
    inside = ideals[:, stream.producer]  # (I, T)
    read = np.asarray((stream.readers @ ideals.T.astype(np.float32)).T, np.int64)  # (I, T) readers within
    total = np.asarray(stream.readers.sum(axis=1)).ravel().astype(np.int64)
    row, tensor = np.nonzero(~np.where(inside, read == total, read == 0))
    cost, within, state = cost_us[tensor], inside[row, tensor], tensor * (total.max(initial=0) + 1) + read[row, tensor]
    states = len(total) * (int(total.max(initial=0)) + 1)

    def factor(blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> csr_matrix:
        rows, columns, values = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return csr_matrix(coo_matrix((values, (rows, columns)), (len(ideals), len(total) + 2 * states)))

    ones, without = np.ones(len(row)), ~within
    kept, other_state = len(total) + state, len(total) + states + state
    left = factor([(row, tensor, ones), (row[within], kept[within], ones[within]), (row, other_state, ones)])
    right = factor([(row, tensor, cost), (row, kept, cost), (row[without], other_state[without], cost[without])])
    return np.bincount(row, cost, len(ideals)), left, right
