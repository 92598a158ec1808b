"""What a graph costs on a cluster: op times, bounds, and the flat arrays that the simulator's kernel reads.

Legend: N ops, T tensors, E edges, D devices, P problems of a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from placeto.problem.cluster import Cluster
from placeto.problem.fields import INT64_MAX, quote
from placeto.problem.graph import ComputationGraph, GraphError

# Resident bytes per parameter byte: parameter, gradient and two Adam moments; parameter alone.
PARAM_MULTIPLIER = {"training": 4, "inference": 1}
_TRAINED_EXTRA = PARAM_MULTIPLIER["training"] - 1  # what training adds to a parameter that is trained
_SHORTEST_US, _LONGEST_US = 1e-12, 1e18
"""Of a time that is not 0, and of all together (30,000 years): beyond, sums and ratios lose their digits."""


class FlatProblems(NamedTuple):
    """P problems as flat arrays, one after another; problem p owns the slices between its offsets p and p + 1.

    All integers are int64, all others float64. Inside a problem, ops, tensors and devices count from 0, and the
    ``*_ptr`` arrays of N + 1 (or T + 1) offsets count from the problem's first edge.
    """

    op_offset: np.ndarray  # (P+1,) ops
    edge_offset: np.ndarray  # (P+1,) edges
    tensor_offset: np.ndarray  # (P+1,) tensors
    device_offset: np.ndarray  # (P+1,) devices
    time_offset: np.ndarray  # (P+1,) N * D
    pair_offset: np.ndarray  # (P+1,) D * D
    # per problem
    broadcast: np.ndarray  # (P,) int64, 1 = one send for all destinations (never with pair links: see Cluster)
    pair_links: np.ndarray  # (P,) int64, 1 = one link per ordered pair of devices
    link_gap_us: np.ndarray  # (P,)
    # per op
    op_time: np.ndarray  # (N*D,) us, row-major
    tail_us: np.ndarray  # (N,) lower bound of the time from the op's end to the makespan
    op_rank: np.ndarray  # (N,) int64, rank of the op's name
    num_inputs: np.ndarray  # (N,) int64, edges into the op
    resident: np.ndarray  # (N,) int64, bytes of parameters, gradients and optimizer state
    # edges out of an op, three orders
    out_ptr: np.ndarray  # (N+1,) offsets of each op's edges in the next three arrays
    out_child: np.ndarray  # (E,) int64, consumers in op order
    out_tensor: np.ndarray  # (E,) int64, the tensors these edges carry
    named_child: np.ndarray  # (E,) int64, consumers in order of (name, output)
    tensor_ptr: np.ndarray  # (T+1,) offsets of each tensor's consumers
    tensor_child: np.ndarray  # (E,) int64, consumers in order of name
    # per tensor
    tensor_src: np.ndarray  # (T,) int64, producer
    tensor_bytes: np.ndarray  # (T,) int64
    live_bytes: np.ndarray  # (T,) int64, what a tensor adds on its producer's device: 0 if it is resident memory
    # per device
    overhead_us: np.ndarray  # (D,)
    memory: np.ndarray  # (D,) int64
    device_rank: np.ndarray  # (D,) int64
    bandwidth: np.ndarray  # (D*D,) bytes/us
    latency_us: np.ndarray  # (D*D,)


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """A graph to be placed on a cluster. Hashable by identity.

    Raises:
        TypeError: something else than a graph and a cluster; the message says what to write.
        GraphError: times that are not finite, or memory that may exceed int64; the message names the op or graph.
    """

    graph: ComputationGraph
    cluster: Cluster

    def __post_init__(self) -> None:
        _check_types(self.graph, self.cluster)
        most = sum(self.graph.param_bytes.tolist()) + _TRAINED_EXTRA * sum(self.graph.trained_bytes.tolist())
        most += sum(self.graph.output_bytes.tolist())
        if most > INT64_MAX:
            raise GraphError(f"graph {quote(self.graph.name)}: parameters and tensors together exceed int64 bytes")
        where = f"on cluster {quote(self.cluster.name)}"
        least, most = np.where(self.op_time > 0, self.op_time, 1.0).min(axis=1), self.op_time.max(axis=1)
        bad = np.flatnonzero((least < _SHORTEST_US) | ~(most <= _LONGEST_US))
        if len(bad):
            time, op = f"{least[bad[0]]:g} to {most[bad[0]]:g} us", quote(self.graph.op_names[bad[0]])
            rule = f"must be 0, or from {_SHORTEST_US:g} to {_LONGEST_US:g} us"
            raise GraphError(f"op {op}: its time {where} {rule}, not {time}")
        if not _horizon(self) <= _LONGEST_US:
            name = quote(self.graph.name)
            raise GraphError(f"graph {name}: its makespan {where} may be more than {_LONGEST_US:g} us")

    def __repr__(self) -> str:
        return f"PlacementProblem({self.graph!r}, {self.cluster!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without what is derived: arrays that come back writable are another type to numba, which compiles."""
        return PlacementProblem, (self.graph, self.cluster)

    @property
    def num_ops(self) -> int:
        """N, the number of ops."""
        return self.graph.num_ops

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return self.cluster.num_devices

    @cached_property
    def resident_bytes(self) -> np.ndarray:
        """(N,) int64, bytes that each op needs for good: parameters, with gradient and two moments where trained."""
        return _frozen(self.graph.param_bytes + _TRAINED_EXTRA * self.graph.trained_bytes)

    @cached_property
    def live_bytes(self) -> np.ndarray:
        """(T,) int64, bytes that each tensor takes on its producer's device while it lives: none if it is resident."""
        return _frozen(np.where(self.graph.resident_outputs, 0, self.graph.output_bytes))

    @cached_property
    def op_time(self) -> np.ndarray:
        """(N, D) float64, microseconds: ``time_us[kind]`` where given, else ``time_us["*"]``, else the roofline.

        The roofline (Williams et al., CACM 2009) is max(flops / peak, bytes_accessed / memory_bandwidth).
        """
        return _frozen(_op_time(self.graph, self.cluster))

    @cached_property
    def single_device_us(self) -> float:
        """Makespan with all ops on the best single device, to the bit what the simulator gives."""
        order = _fifo_order(self.graph)
        best = np.inf
        for device in range(self.num_devices):
            time_us = self.op_time[order, device]
            busy = np.empty(2 * self.num_ops)
            busy[0::2] = time_us
            busy[1::2] = np.where(time_us > 0, self.cluster.overhead_us[device], 0.0)
            best = min(best, float(np.cumsum(busy)[-1]))  # cumsum adds one by one, as the simulator does
        return best

    @cached_property
    def lower_bound_us(self) -> float:
        """max(critical path, total work / D) with each op's fastest device: no placement is faster.

        Overheads count where they can't be avoided: in the work, and after the last op of a path.
        """
        busy = (self.op_time + np.where(self.op_time > 0, self.cluster.overhead_us, 0.0)).min(axis=1)
        path = _longest_path(self.graph, self.op_time.min(axis=1), busy)
        return max(float(path.max()), float(busy.sum()) / self.num_devices)

    @cached_property
    def arrays(self) -> FlatProblems:
        """The problem as flat arrays, a batch of one: what the simulator's kernel reads."""
        return _flatten(self)


@dataclass(frozen=True, eq=False)
class ProblemBatch:
    """Several problems in one set of flat arrays, for `simulate_batch` and for kernels of one's own."""

    problems: tuple[PlacementProblem, ...]  # (P,)
    arrays: FlatProblems

    @classmethod
    def of(cls, problems: Sequence[PlacementProblem]) -> ProblemBatch:
        """Concatenate problems; their graphs and clusters may differ in everything.

        Raises:
            ValueError: no problem at all.
        """
        if not problems:
            raise ValueError("a batch needs at least one problem")
        parts = [problem.arrays for problem in problems]
        columns = []
        for name, column in zip(FlatProblems._fields, zip(*parts, strict=True), strict=True):
            if name.endswith("_offset"):
                columns.append(np.cumsum([0, *(int(array[-1]) for array in column)], dtype=np.int64))
            else:
                columns.append(np.concatenate(column))
        return cls(tuple(problems), FlatProblems(*map(_frozen, columns)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles its problems alone, as they do."""
        return ProblemBatch.of, (self.problems,)

    @property
    def max_ops(self) -> int:
        """Number of ops of the largest problem: the width of a padded placement."""
        return max(problem.num_ops for problem in self.problems)


def check_problem(problem: object) -> None:
    """Refuse what is no problem, such as a graph or the name of a cluster.

    Raises:
        TypeError: it is none; the message says what to write.
    """
    if not isinstance(problem, PlacementProblem):
        raise TypeError(
            f"a PlacementProblem is needed, not {problem!r}: write PlacementProblem(graph, load_cluster('4xv100'))"
        )


def _check_types(graph: object, cluster: object) -> None:
    if not isinstance(graph, ComputationGraph):
        how = (
            f"load_graph({str(graph)!r})"
            if isinstance(graph, (str, Path))
            else "capture_training(module, inputs, loss)"
        )
        raise TypeError(f"a PlacementProblem needs a ComputationGraph, not {type(graph).__name__}: write {how}")
    if not isinstance(cluster, Cluster):
        how = f"load_cluster({str(cluster)!r})" if isinstance(cluster, (str, Path)) else "load_cluster('4xv100')"
        raise TypeError(f"a PlacementProblem needs a Cluster, not {type(cluster).__name__}: write {how}")


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def _op_time(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    time = np.empty((graph.num_ops, cluster.num_devices))
    for column, device in enumerate(cluster.devices):
        with np.errstate(over="ignore"):  # PlacementProblem refuses what is not finite
            compute, access = graph.flops / device.flops, graph.bytes_accessed / device.memory_bandwidth
            time[:, column] = np.maximum(compute, access) * 1e6
        for kind in ("*", device.kind):
            if kind in graph.time_us:
                measured = graph.time_us[kind]
                time[:, column] = np.where(np.isnan(measured), time[:, column], measured)
    return time


def _horizon(problem: PlacementProblem) -> float:
    """A time, in microseconds, by which any schedule has ended: everything one after another, at its slowest."""
    graph, cluster = problem.graph, problem.cluster
    ops = sum(problem.op_time.max(axis=1).tolist()) + problem.num_ops * float(cluster.overhead_us.max())
    largest = float(graph.output_bytes.max(initial=0))
    transfer = float(cluster.latency_us.max()) + largest / float(cluster.bandwidth.min()) + cluster.link_gap_us
    return ops + graph.num_edges * transfer


def _fifo_order(graph: ComputationGraph) -> np.ndarray:
    """(N,) int64, the order in which one device alone runs the ops: first ready first, siblings by name."""
    by_name = np.lexsort((graph.name_rank[graph.edge_dst], graph.edge_src))
    child = graph.edge_dst[by_name].tolist()
    ptr = np.searchsorted(graph.edge_src[by_name], np.arange(graph.num_ops + 1)).tolist()
    missing = np.bincount(graph.edge_dst, minlength=graph.num_ops).tolist()
    queue = deque(i for i in range(graph.num_ops) if missing[i] == 0)
    order = []
    while queue:
        op = queue.popleft()
        order.append(op)
        for c in child[ptr[op] : ptr[op + 1]]:
            missing[c] -= 1
            if missing[c] == 0:
                queue.append(c)
    return np.array(order, np.int64)


def _longest_path(graph: ComputationGraph, time: np.ndarray, last: np.ndarray) -> np.ndarray:
    """(N,) longest path from the start of each op, where an op takes `time`, but `last` if it ends the path."""
    by_src = np.argsort(graph.edge_src, kind="stable")
    child = graph.edge_dst[by_src].tolist()
    ptr = np.searchsorted(graph.edge_src[by_src], np.arange(graph.num_ops + 1)).tolist()
    path, time_list = last.tolist(), time.tolist()
    for op in reversed(graph.topological_order.tolist()):
        for c in child[ptr[op] : ptr[op + 1]]:
            path[op] = max(path[op], time_list[op] + path[c])
    return np.array(path)


def _flatten(problem: PlacementProblem) -> FlatProblems:
    graph, cluster = problem.graph, problem.cluster
    num_ops, num_tensors, num_devices = graph.num_ops, len(graph.output_bytes), cluster.num_devices
    src, dst, tensor, rank = graph.edge_src, graph.edge_dst, graph.edge_tensor, graph.name_rank
    in_op_order = np.argsort(src, kind="stable")  # edges are stored by consumer, in op order
    by_name = np.lexsort((tensor, rank[dst], src))
    by_tensor = np.lexsort((rank[dst], tensor))
    fastest = problem.op_time.min(axis=1)
    # A hair below the sum, so that rounding never makes the bound exceed the makespan.
    tail = (_longest_path(graph, fastest, fastest) - fastest) * (1 - 1e-9)

    def offset(count: int) -> np.ndarray:
        return np.array([0, count], np.int64)

    arrays = FlatProblems(
        op_offset=offset(num_ops),
        edge_offset=offset(graph.num_edges),
        tensor_offset=offset(num_tensors),
        device_offset=offset(num_devices),
        time_offset=offset(num_ops * num_devices),
        pair_offset=offset(num_devices**2),
        broadcast=np.array([cluster.transfers == "broadcast" and cluster.link == "egress"], np.int64),
        pair_links=np.array([cluster.link == "pair"], np.int64),
        link_gap_us=np.array([cluster.link_gap_us], np.float64),
        op_time=problem.op_time.ravel(),
        tail_us=np.maximum(tail, 0.0),
        op_rank=rank.astype(np.int64),
        num_inputs=np.bincount(dst, minlength=num_ops).astype(np.int64),
        resident=problem.resident_bytes,
        out_ptr=np.searchsorted(src[in_op_order], np.arange(num_ops + 1)).astype(np.int64),
        out_child=dst[in_op_order],
        out_tensor=tensor[in_op_order],
        named_child=dst[by_name],
        tensor_ptr=np.searchsorted(tensor[by_tensor], np.arange(num_tensors + 1)).astype(np.int64),
        tensor_child=dst[by_tensor],
        tensor_src=np.repeat(np.arange(num_ops), np.diff(graph.output_ptr)).astype(np.int64),
        tensor_bytes=graph.output_bytes.astype(np.int64),
        live_bytes=problem.live_bytes,
        overhead_us=cluster.overhead_us.copy(),
        memory=cluster.memory.copy(),
        device_rank=cluster.device_rank.copy(),
        bandwidth=cluster.bandwidth.ravel(),
        latency_us=cluster.latency_us.ravel(),
    )
    return FlatProblems(*(_frozen(np.ascontiguousarray(array)) for array in arrays))
