"""A stream of samples through a placed graph: the load of each device.

In the steady state of a pipeline every device works on another sample, so the device with the greatest load sets the
pace. After Tarnawski et al., NeurIPS 2020, the load of a device is the time of its ops, plus the time of each tensor
that leaves it or enters it, once for each tensor. Nothing that a device does overlaps. An op's memory is its
parameters, with gradients and optimizer state in training, and all its outputs.

Legend: N ops, U units (ops that stay together), T tensors that another unit reads, D devices, P pairs of units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components

from placeto.errors import PlacerError
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class Stream:
    """Units to be spread over devices so that the greatest load is least."""

    unit: np.ndarray  # (N,) int64, unit of each op
    time_us: np.ndarray  # (U, D) us a sample, with overheads
    memory: np.ndarray  # (U,) int64, bytes of each unit
    capacity: np.ndarray  # (D,) int64, bytes of each device's memory
    producer: np.ndarray  # (T,) int64, unit that makes the tensor
    readers: csr_matrix  # (T, U) 1 where a unit other than the producer reads the tensor
    cost_us: np.ndarray  # (T, D, D) us, transfer from row to column; 0 on the diagonal
    sends: np.ndarray  # (D,) bool, whether transfers count in the device's load
    before: np.ndarray  # (P, 2) int64 pairs of units: the first comes before the second in the forward pass

    @property
    def num_units(self) -> int:
        """U, the number of units."""
        return len(self.memory)

    @property
    def links_alike(self) -> bool:
        """Whether a tensor takes the same time between any two devices."""
        away = self.cost_us[:, ~np.eye(self.cost_us.shape[1], dtype=bool)]
        return bool((away == away[:, :1]).all()) if away.size else True

    def cost_at(self, slowest: bool) -> np.ndarray:
        """(T,) microseconds of each tensor over the slowest link between two devices, or the fastest."""
        away = self.cost_us[:, ~np.eye(self.cost_us.shape[1], dtype=bool)]
        if not away.size:
            return np.zeros(len(self.producer))
        return np.asarray(away.max(axis=1) if slowest else away.min(axis=1))

    def loads_us(self, units: np.ndarray) -> np.ndarray:
        """(D,) load of each device, in microseconds a sample, where unit u is on device ``units[u]``."""
        devices = self.time_us.shape[1]
        on = np.zeros((self.num_units, devices), bool)
        on[np.arange(self.num_units), units] = True
        read = np.asarray(self.readers @ on.astype(np.int64)) > 0  # (T, D)
        home = units[self.producer]
        sent = np.where(read, self.cost_us[np.arange(len(home)), home], 0.0)  # (T, D), 0 at home
        passed = np.bincount(home, weights=sent.max(axis=1, initial=0.0), minlength=devices) + sent.sum(axis=0)
        return np.asarray((self.time_us * on).sum(axis=0) + np.where(self.sends, passed, 0.0))

    def held(self, units: np.ndarray) -> np.ndarray:
        """(D,) bytes that each device holds, where unit u is on device ``units[u]``."""
        return np.bincount(units, weights=self.memory, minlength=self.time_us.shape[1])

    def fits(self, units: np.ndarray) -> bool:
        """Whether no device holds more bytes than its memory has, where unit u is on device ``units[u]``."""
        return bool((self.held(units) <= self.capacity).all())


def stream_of(problem: PlacementProblem, joined: np.ndarray | None = None) -> Stream:
    """Make the stream of samples, or of training steps, through a graph on a cluster.

    Ops are in one unit if they are colocated or joined, or if their units need each other's results in the forward
    pass. A unit that takes no time and exchanges tensors with only one other unit joins that one.

    Edges between forward ops say which of two units comes before the other in the forward pass (`Stream.before`). Edges
    between backward ops count as well, reversed, unless both of their units also have forward ops. This is as in the
    program of Tarnawski et al.

    A transfer takes its latency, plus its bytes divided by the bandwidth. It counts in the loads of both its devices,
    except in that of a CPU beside accelerators: then the accelerators' copy engines do the work.

    Args:
        problem: to be placed.
        joined: (N,) group of each op, below 0 = none; a group stays together as well. None = there are no groups.

    Raises:
        PlacerError: the graph is a step in micro-batches, or hosts take time to launch ops.
    """
    graph, cluster = problem.graph, problem.cluster
    if (graph.micro_batches != NO_MICRO_BATCH).any():
        raise PlacerError(
            f"graph {graph.name!r} is a step in micro-batches, which the objective throughput doesn't take: capture it "
            "with one micro-batch, or minimise the makespan"
        )
    if cluster.launch_us.any():
        raise PlacerError(
            f"on {cluster.name} the host takes time to launch ops (launch_us), which the objective throughput doesn't "
            "count: minimise the makespan, or use a launch_us of 0"
        )
    unit = _units(graph, problem.busy_us, joined)
    count = int(unit.max()) + 1
    time_us = np.stack([np.bincount(unit, device_us, count) for device_us in problem.busy_us.T], axis=1)
    made_bytes = np.bincount(graph.producer, weights=problem.live_bytes, minlength=graph.num_ops)
    memory = np.bincount(unit, weights=problem.resident_bytes + made_bytes, minlength=count).astype(np.int64)
    producer, readers, sizes, times = _tensors(graph, unit)
    cost_us = times[:, None, None] * cluster.latency_us + sizes[:, None, None] / cluster.bandwidth
    cpu = np.array([device.is_cpu for device in cluster.devices])
    capacity = np.array([device.memory for device in cluster.devices], np.int64)
    before = _precedence(graph, unit)
    return Stream(unit, time_us, memory, capacity, producer, readers, cost_us, ~cpu | cpu.all(), before)


def _backward(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, whether each op is of the backward pass, by its pass or, in imported graphs, by its type."""
    pairs = zip(graph.passes, graph.op_types, strict=True)
    return np.array([part in BACKWARD_PASSES or kind.endswith(".backward") for part, kind in pairs], bool)


def _units(graph: ComputationGraph, busy_us: np.ndarray, joined: np.ndarray | None) -> np.ndarray:
    """(N,) unit of each op."""
    ops = np.arange(graph.num_ops)
    pairs = [np.stack([ops, ops])]
    for label in (graph.colocation, joined):
        if label is not None:
            known = ops[label >= 0]
            _, first, inverse = np.unique(label[known], return_index=True, return_inverse=True)
            pairs.append(np.stack([known, known[first][inverse]]))
    unit = _components(np.concatenate(pairs, axis=1), graph.num_ops)
    unit = _components(_precedence(graph, unit).T, int(unit.max()) + 1, "strong")[unit]
    while True:  # after each round, further units may have only one neighbour
        producer, readers, _, _ = _tensors(graph, unit)
        count = int(unit.max()) + 1
        ends = np.stack([producer[(table := coo_matrix(readers)).row], table.col])
        directed = np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1)
        idle = np.bincount(unit, busy_us.sum(axis=1), count) == 0
        single = idle & (np.bincount(directed[0], minlength=count) == 1)
        if not single.any():
            return unit
        unit = _components(directed[:, single[directed[0]]], count)[unit]


def _components(pairs: np.ndarray, count: int, connection: str = "weak") -> np.ndarray:
    """(count,) connected component of each node, from pairs (2, P) of nodes; numbered in order of their first nodes."""
    matrix = coo_matrix((np.ones(pairs.shape[1]), tuple(pairs)), (count, count))
    labels = connected_components(matrix, directed=True, connection=connection)[1]
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse])


def _tensors(graph: ComputationGraph, unit: np.ndarray) -> tuple[np.ndarray, csr_matrix, np.ndarray, np.ndarray]:
    """Return the tensors that other units read. Tensors from one unit to the same readers are joined to one.

    Returns:
        (T,) int64, unit that makes each tensor. (T, U), 1 where a unit reads it. (T,) float64, its bytes. (T,) float64,
        number of tensors that it is joined from.
    """
    tensor = graph.output_ptr[graph.edge_src] + graph.edge_output
    readers: dict[int, set[int]] = {}
    for t, src, dst in zip(tensor.tolist(), unit[graph.edge_src].tolist(), unit[graph.edge_dst].tolist(), strict=True):
        if src != dst:
            readers.setdefault(t, set()).add(dst)
    merged: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for t, units in readers.items():
        merged.setdefault((int(unit[graph.producer[t]]), tuple(sorted(units))), []).append(t)
    producer = np.array([src for src, _ in merged], np.int64)
    rows = np.repeat(np.arange(len(merged)), [len(units) for _, units in merged]).astype(np.int64)
    columns = np.array([reader for _, units in merged for reader in units], np.int64)
    matrix = csr_matrix((np.ones(len(rows), np.int64), (rows, columns)), (len(merged), int(unit.max()) + 1))
    sizes = np.array([graph.output_bytes[members].sum() for members in merged.values()], np.float64)
    return producer, matrix, sizes, np.array([len(members) for members in merged.values()], np.float64)


def _precedence(graph: ComputationGraph, unit: np.ndarray) -> np.ndarray:
    """(P, 2) int64, pairs of units of which the first comes before the second in the forward pass; see `stream_of`."""
    backward, src, dst = _backward(graph), graph.edge_src, graph.edge_dst
    forward = np.zeros(int(unit.max()) + 1, bool)
    forward[unit[~backward]] = True
    ahead = ~backward[src] & ~backward[dst]
    mirrored = backward[src] & backward[dst] & ~(forward[unit[src]] & forward[unit[dst]])
    pairs = np.concatenate([unit[[src[ahead], dst[ahead]]], unit[[dst[mirrored], src[mirrored]]]], axis=1)
    return np.unique(pairs[:, pairs[0] != pairs[1]], axis=1).T.astype(np.int64)
