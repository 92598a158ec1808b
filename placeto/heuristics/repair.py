"""Repair of a placement that doesn't fit: groups are moved off the devices that need more memory than they have.

A unit is the ops of one group that are on one device. Units are moved as a whole.

Legend: N ops, D devices, U units, A pairs of units that an edge joins (each edge between two units counts both ways).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.problem.grouping.coarsening import op_outputs, transfer_us
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate

_CAUTION = 0.02  # share of the memory that is left free at the third attempt; each later one adds as much


def repair(evaluator: Evaluator) -> None:
    """Move units of the evaluator's best placement off full devices, and score each placement, until one fits.

    It ends after 2 D + 8 simulations at the latest. If no move helps, it begins once more from a placement with all ops
    on the device with the most memory. If no move helps again, it ends.

    The simulation gives the peak memory of each device. A unit is taken to account for its parameters, and for the same
    share of its outputs as its device holds at the peak. The next move is the one that lowers the excess of memory most
    for the transfer time that it adds. If no move lowers the excess, two units change places.
    """
    problem, placement = evaluator.problem, evaluator.best
    if placement is None or problem.num_devices == 1:
        return
    memory = problem.cluster.memory.astype(np.float64)
    outputs = op_outputs(problem)
    resident = problem.resident_bytes.astype(np.float64)
    began_anew = False
    for attempt in range(2 * problem.num_devices + 8):
        if evaluator.exhausted:
            return
        schedule = simulate(problem, placement)
        evaluator.absorb(placement, schedule.makespan_us, schedule.overflow, 1)
        if schedule.fits:
            return
        peak = schedule.peak_memory.astype(np.float64)
        held = np.bincount(placement, weights=resident, minlength=len(memory))
        made_bytes = np.bincount(placement, weights=outputs, minlength=len(memory))
        share = np.clip((peak - held) / np.maximum(made_bytes, 1.0), 0.0, 1.0)
        limit = memory * (1.0 - _CAUTION * max(0, attempt - 1))
        moved = _relieve(evaluator, placement, resident + share[placement] * outputs, peak, limit)
        if np.array_equal(moved, placement):
            if began_anew:
                return
            began_anew, moved = True, np.full(len(placement), int(memory.argmax()))
        placement = moved


def _relieve(
    evaluator: Evaluator, placement: np.ndarray, size: np.ndarray, peak: np.ndarray, limit: np.ndarray
) -> np.ndarray:
    """Return a placement (N,) that exceeds the limits by less; the same placement if no move helps.

    Args:
        evaluator: has the problem and the groups; nothing moves once its budget is spent.
        placement: (N,) device of each op.
        size: (N,) bytes that each op accounts for at the peak of its device.
        peak: (D,) bytes.
        limit: (D,) bytes.
    """
    problem, graph = evaluator.problem, evaluator.problem.graph
    num_devices, peak = len(limit), peak.copy()
    keys, unit = np.unique(evaluator.groups.group * num_devices + placement, return_inverse=True)
    device, size = keys % num_devices, np.bincount(unit, weights=size)  # (U,)
    travel = transfer_us(problem)[graph.edge_tensor]
    usual = travel.sum() / max(len(travel), 1) + 1e-9
    links = _links(unit[graph.edge_src], unit[graph.edge_dst], travel, len(device))
    traffic = _traffic(links, device, num_devices)
    for _ in range(2 * len(device)):
        over = np.maximum(0.0, peak - limit)
        full = int(over.argmax())
        if over[full] == 0.0 or evaluator.exhausted:
            break
        leaving = np.flatnonzero((device == full) & (size > 0.0))
        excess = np.maximum(0.0, peak[full] - limit[full] - size[leaving])[:, None]
        onto = np.maximum(0.0, peak + size[leaving, None] - limit)
        relief = over[full] - excess + over - onto  # (leaving, D) bytes of excess that the move takes away
        relief[:, full] = 0.0
        if relief.max(initial=0.0) > 0.0:
            added = np.maximum(0.0, traffic[leaving, full][:, None] - traffic[leaving])
            worth = np.where(relief > 0.0, relief / (added + usual), 0.0)
            row, column = divmod(int(worth.argmax()), num_devices)
            moves = [(int(leaving[row]), column)]
        else:
            swapped = np.flatnonzero(device != full)
            gain = size[leaving][:, None] - size[swapped]  # (leaving, swapped) bytes that the full device has less
            home = device[swapped]
            excess = np.maximum(0.0, peak[full] - limit[full] - gain)
            relief = over[full] - excess + over[home] - np.maximum(0.0, peak[home] + gain - limit[home])
            if relief.max(initial=0.0) <= 0.0:
                break
            row, column = divmod(int(relief.argmax()), len(swapped))
            moves = [(int(leaving[row]), int(home[column])), (int(swapped[column]), full)]
        for u, to in moves:
            near, travels = links.pairs_of(u)
            np.add.at(traffic[:, device[u]], near, -travels)
            np.add.at(traffic[:, to], near, travels)
            peak[device[u]] -= size[u]
            peak[to] += size[u]
            device[u] = to
    went = device != keys % num_devices
    for u in np.unique(links.other[went[links.unit]]).tolist():  # neighbours of moved units, which would need copies
        to = int(traffic[u].argmax())
        if not went[u] and traffic[u, to] > traffic[u, device[u]] and peak[to] + size[u] <= limit[to]:
            peak[to] += size[u]
            device[u] = to
    return device[unit]


class _Links(NamedTuple):
    """Pairs of units that exchange tensors, sorted by their first unit."""

    ptr: np.ndarray  # (U+1,) offsets of each unit's pairs
    unit: np.ndarray  # (A,) first unit of each pair
    other: np.ndarray  # (A,) second unit of each pair
    travel: np.ndarray  # (A,) us, transfer time of the edge's tensor

    def pairs_of(self, unit: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the units that exchange tensors with a unit, one for each pair, and their transfer times in us."""
        pairs = slice(self.ptr[unit], self.ptr[unit + 1])
        return self.other[pairs], self.travel[pairs]


def _links(src: np.ndarray, dst: np.ndarray, travel: np.ndarray, num_units: int) -> _Links:
    """Make the pairs of units from edges.

    Edges within a unit are left out, since the unit moves as a whole.

    Args:
        src: (E,) unit that makes each edge's tensor.
        dst: (E,) unit that reads it.
        travel: (E,) us, transfer time of the tensor.
        num_units: U.
    """
    crosses = src != dst
    unit, other = np.concatenate([src[crosses], dst[crosses]]), np.concatenate([dst[crosses], src[crosses]])
    order = np.argsort(unit, kind="stable")
    ptr = np.searchsorted(unit[order], np.arange(num_units + 1))
    return _Links(ptr, unit[order], other[order], np.tile(travel[crosses], 2)[order])


def _traffic(links: _Links, device: np.ndarray, num_devices: int) -> np.ndarray:
    """(U, D) transfer time in us between each unit and all units on each device."""
    traffic = np.zeros((len(device), num_devices))
    np.add.at(traffic, (links.unit, device[links.other]), links.travel)
    return traffic
