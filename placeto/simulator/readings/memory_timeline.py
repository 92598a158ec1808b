"""Memory of devices over time, whose maximum is `Schedule.peak_memory`.

Legend: D devices, P points, C categories.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.simulator.memory import lives
from placeto.simulator.schedule import Schedule

CATEGORIES = ("weights", "gradients", "optimizer", "activations", "received")
"""What memory is used for: parameters; gradients, including those of single micro-batches; the optimizer's state;
tensors that other ops have made; and copies of parameters and tensors of other devices."""
GATHER, SCATTER, RELAY, RECEIVE = "gather", "scatter", "relay", "receive"
"""Types of ops of no cost in steps of tools. A gather makes the weights of a unit from their parts, a scatter makes the
parts of its gradients, and a relay passes a tensor on to other devices. An op that receives has a buffer for what it
receives, for the whole step."""


def memory_by_category(schedule: Schedule, devices: Sequence[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return when memory of some devices changes (P,) in us, and its bytes since then by `CATEGORIES` (P, C) int64.

    The first point is at 0 us, and has the parameters, their gradients and the optimizer's state.
    """
    graph = schedule.problem.graph
    begin, end, where, size, made_by = _lives(schedule)
    sums, types = gradient_sums(graph), np.array(graph.op_types)
    parts = graph.producer[sums.tensor]  # the ops that make the contributions to gradients
    gives, takes = types[graph.edge_dst] == SCATTER, types[graph.edge_src] == SCATTER
    summing = [sums.additions, parts, graph.edge_src[gives], graph.edge_src[takes], graph.edge_dst[takes]]
    received = (made_by >= graph.num_ops) | np.isin(made_by, np.flatnonzero(types == RELAY))
    gathered = np.isin(made_by, np.flatnonzero(types == GATHER))
    summed = np.isin(made_by, np.concatenate(summing))
    kind = np.where(received, 4, np.where(gathered, 0, np.where(summed, 1, 3)))
    found = {}
    for device in devices:
        lives, ops = np.flatnonzero(where == device), np.flatnonzero(schedule.placement == device)
        times, group = np.unique(np.concatenate([[0.0], begin[lives], end[lives]]), return_inverse=True)
        change = np.zeros((len(times), len(CATEGORIES)), np.int64)
        np.add.at(change, (group[1:], np.tile(kind[lives], 2)), np.concatenate([size[lives], -size[lives]]))
        weights, trained = int(graph.param_bytes[ops].sum()), int(graph.trained_bytes[ops].sum())
        state = int(schedule.problem.resident_bytes[ops].sum()) - weights - trained
        buffers = int(graph.param_bytes[ops[types[ops] == RECEIVE]].sum())
        change[group[0]] += [weights - buffers, trained, state, 0, buffers]
        found[device] = times, np.cumsum(change, axis=0)
    return found


def peak_by_category(schedule: Schedule, device: int) -> dict[str, int]:
    """Return the bytes of each of `CATEGORIES` on a device at its peak; their sum is its `Schedule.peak_memory`."""
    _, held = memory_by_category(schedule, [device])[device]
    return dict(zip(CATEGORIES, held[held.sum(axis=1).argmax()].tolist(), strict=True))


def _lives(schedule: Schedule) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the lives of tensors and copies: begin and end in us, device, bytes, and the number of the producer.

    Copies that were received, and tensors of relays, have numbers above those of the graph's ops.
    """
    low, record = schedule.lowering, schedule.lowering.record
    born, ended, where, size = lives(low.flat, low.placement, record, schedule.num_sends)
    begin = np.concatenate([record.start[: len(low.placement)], record.send_finish])[born]
    end = np.concatenate([record.finish[: len(low.placement)], record.send_finish])[ended]
    lasts = (begin < end) & (size > 0)
    return begin[lasts], end[lasts], where[lasts], size[lasts], born[lasts]
