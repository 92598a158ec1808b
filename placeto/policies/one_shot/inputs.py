"""The input of one-shot policies: a problem as tensors, which are independent of any placement.

A *unit* is what gets one device: an op, a co-located set of ops, a stretch of the topological order, or a group of
`placeto.problem.grouping`.

Legend: N ops, U units, M arcs between units, D devices, T buckets of op types, S slots of time.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from placeto.problem.flat import longest_path
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import colocation_groups
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem, check_problem

UnitKind = Literal["groups", "few", "paper", "ops"]
FEW_GROUPS = 100  # units "few" are the groups if there are at most this many
STRETCHES = 32  # otherwise they are this many stretches of the topological order
TYPE_BUCKETS = 128
NEIGHBOURS = 6  # producers in the adjacency features of a unit, and also consumers
UNIT_FEATURES = (
    "time", "share", "flops", "outputs", "parameters", "transfer", "ops", "producers", "consumers", "position", "tail",
    "cos2", "cos4", "sin4", "cos8", "sin8",
)  # fmt: skip
"""Features of a unit. They are its sizes, degrees and times, its position in the order, and the time that must follow
(`tail`). The last ones are the unit's number modulo 2, 4 and 8 as an angle. By these a policy can tell units with
otherwise equal features apart, and can place them on devices in turn."""
DEVICE_FEATURES = ("speed", "memory", "bandwidth")
SLOTS = 16  # equal parts of the time of the longest path, without transfers


@dataclass(frozen=True, eq=False)
class OneShotInput:
    """A problem as static tensors. Units are numbered by their first op in topological order."""

    unit: Tensor  # (N,) int64, unit of each op
    op_type: Tensor  # (N,) int64 in 0..T-1, a hash of the op's type
    features: Tensor  # (U, len(UNIT_FEATURES)) float32: logarithms of sizes and degrees, shares of time
    neighbours: Tensor  # (U, 2 * NEIGHBOURS) float32, positions of producers and consumers in 0..1, -1 = none
    edges: Tensor  # (2, M) int64, source and target unit of each arc
    producers: Tensor  # (U, NEIGHBOURS) int64, the earlier units that send most to each; 0 in places that are left
    shares: Tensor  # (U, NEIGHBOURS) float32, share of each of these in the bytes of all of them; 0 in places left
    work: Tensor  # (U,) float32, share of the graph's time, a mean over devices
    pair: Tensor  # (U, D) float32, logarithm of (time on each device / mean over devices), in -5..5
    device: Tensor  # (D, len(DEVICE_FEATURES)) float32
    time: Tensor  # (U, D) float32, time of each unit on each device; the best single device takes 1 for all units
    transfer: Tensor  # (M,) float32, time of each arc's tensors over the mean link, in the same unit
    delay: Tensor  # (M,) float32, by how much these make the longest path longer, added up over tensors, in that unit
    links: Tensor  # (D, D) float32, time of a tensor of the mean size over each link, relative to the mean; 0 within
    memory: Tensor  # (U, D, 2) float32, share of each device's memory for what is resident, and for the tensors made
    profile: Tensor  # (U, 2, S) float32, share of all time in each slot if ops start as early, and as late, as they can

    @property
    def num_units(self) -> int:
        """U, the number of units."""
        return len(self.features)

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return len(self.device)

    def to(self, device: str | torch.device) -> OneShotInput:
        """Return a copy whose tensors are on another torch device."""
        return OneShotInput(*(getattr(self, field.name).to(device) for field in fields(self)))


@lru_cache(maxsize=1024)
def make_input(problem: PlacementProblem, kind: UnitKind) -> OneShotInput:
    """Describe a problem for one-shot policies, whose units are of a kind of `decision_units`; cached.

    Raises:
        TypeError: `problem` is no `PlacementProblem`.
    """
    check_problem(problem)
    graph, cluster = problem.graph, problem.cluster
    unit = decision_units(problem, kind)
    count = int(unit.max()) + 1

    def total(per_op: np.ndarray) -> np.ndarray:
        return np.bincount(unit, per_op, count)

    earliest, latest = _starts(problem)
    slack = latest[graph.edge_dst] - earliest[graph.edge_src] - problem.op_time.mean(1)[graph.edge_src]
    src, dst, arc, tensor_bytes, slack_us = _arcs(graph, unit, slack)
    size = np.bincount(arc, tensor_bytes)
    apart = ~np.eye(cluster.num_devices, dtype=bool)
    bandwidth = np.where(apart, cluster.bandwidth, np.nan)
    mean_rate = float(np.nanmean(bandwidth)) if apart.any() else 1.0  # bytes/us
    output_bytes = np.diff(np.concatenate([[0.0], np.cumsum(graph.output_bytes, dtype=np.float64)])[graph.output_ptr])
    time = np.stack([total(problem.op_time[:, d]) for d in range(problem.num_devices)], 1)  # (U, D)
    mean_time = time.mean(1)
    tail = np.zeros(count)
    np.maximum.at(tail, unit, problem.arrays.tail_us)
    latency_us = cluster.latency_us[apart].mean() if apart.any() else 0.0
    inverse_rate = (1.0 / cluster.bandwidth[apart]).mean() if apart.any() else 0.0
    mean_size = tensor_bytes.mean() if len(tensor_bytes) else 0.0
    travel = tensor_bytes * inverse_rate + latency_us
    links = np.where(apart, cluster.latency_us + mean_size / np.where(apart, cluster.bandwidth, 1.0), 0.0)  # (D, D)
    leaving = np.bincount(src, size, count)
    producers, shares = _producers(src, dst, size, count)
    columns = {
        "time": np.log1p(mean_time) / 10,
        "share": np.log1p(mean_time / max(mean_time.mean(), 1e-12)),
        "flops": np.log1p(total(graph.flops)) / 20,
        "outputs": np.log1p(total(output_bytes)) / 20,
        "parameters": np.log1p(total(graph.param_bytes)) / 20,
        "transfer": np.log1p(leaving / mean_rate) / 10,
        "ops": np.log1p(total(np.ones(graph.num_ops))) / 5,
        "producers": np.log1p(np.bincount(dst, minlength=count)) / 3,
        "consumers": np.log1p(np.bincount(src, minlength=count)) / 3,
        "position": np.arange(count) / max(count - 1, 1),
        "tail": tail / max(tail.max(), 1e-12),
    }
    for name, turn in (("cos2", 2), ("cos4", 4), ("cos8", 8)):
        columns[name] = np.cos(2 * np.pi * np.arange(count) / turn)
    for name, turn in (("sin4", 4), ("sin8", 8)):
        columns[name] = np.sin(2 * np.pi * np.arange(count) / turn)
    single_us = max(problem.single_device_us, 1e-12)
    busy = np.stack([total(problem.busy_us[:, d]) for d in range(problem.num_devices)], 1)
    made = np.bincount(unit[graph.producer], problem.live_bytes, count)
    need = np.stack([total(problem.resident_bytes), made], 1)  # (U, 2)
    relative = np.log(np.maximum(time, 1e-9) / np.maximum(mean_time, 1e-9)[:, None]).clip(-5, 5)
    work = np.maximum(problem.op_time.sum(0), 1e-12)
    devices = {
        "speed": work.min() / work,
        "memory": np.log(cluster.memory / max(output_bytes.sum() + graph.param_bytes.sum(), 1.0)).clip(-5, 5) / 5,
        "bandwidth": np.nanmean(bandwidth, 1) / np.nanmax(bandwidth) if apart.any() else np.ones(1),
    }
    return OneShotInput(
        unit=torch.from_numpy(unit.copy()),
        op_type=torch.tensor([type_bucket(name) for name in graph.op_types]),
        features=_table(columns, UNIT_FEATURES),
        neighbours=torch.from_numpy(_neighbours(src, dst, size, count)),
        edges=torch.from_numpy(np.stack([src, dst])),
        producers=torch.from_numpy(producers),
        shares=torch.from_numpy(shares),
        work=_floats(mean_time / max(mean_time.sum(), 1e-12)),
        pair=_floats(relative),
        device=_table(devices, DEVICE_FEATURES),
        time=_floats(busy / single_us),
        transfer=_floats(np.bincount(arc, travel) / single_us),
        delay=_floats(np.bincount(arc, np.maximum(travel - slack_us, 0.0)) / single_us),
        links=_floats(links / max(links[apart].mean(), 1e-12) if apart.any() else links),
        memory=_floats(need[:, None] / np.maximum(cluster.memory, 1)[:, None]),
        profile=_floats(_profile(problem, unit, count, (earliest, latest))),
    )


def _starts(problem: PlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """Return (N,) and (N,) when each op starts at the earliest and at the latest, in us, if transfers take no time."""
    graph, time = problem.graph, problem.op_time.mean(1)
    left = longest_path(graph, time, time)  # from each op's start
    earliest, end = np.zeros(graph.num_ops), [0.0] * graph.num_ops
    first, sources, times = graph.input_ptr.tolist(), graph.edge_src.tolist(), time.tolist()
    for op in graph.topological_order.tolist():
        start = max((end[source] for source in sources[first[op] : first[op + 1]]), default=0.0)
        earliest[op], end[op] = start, start + times[op]
    return earliest, left.max() - left


def _profile(problem: PlacementProblem, unit: np.ndarray, count: int, starts: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return (U, 2, S) the share of the graph's time in each slot, if ops start as early, or as late, as they can."""
    time = problem.op_time.mean(1)
    span = max((starts[0] + time).max(), 1e-12)
    profile = np.zeros((count, 2, SLOTS))
    for way, start_us in enumerate(starts):
        slot = np.minimum((start_us / span * SLOTS).astype(np.int64), SLOTS - 1)
        profile[:, way] = np.bincount(unit * SLOTS + slot, time, count * SLOTS).reshape(count, SLOTS)
    return profile / max(time.sum(), 1e-12)


@lru_cache(maxsize=4096)
def type_bucket(op_type: str) -> int:
    """Return the bucket of an op type, in 0..T-1: a hash that is the same in every process, also of unknown types."""
    return zlib.crc32(op_type.encode()) % TYPE_BUCKETS


def decision_units(problem: PlacementProblem, kind: UnitKind) -> np.ndarray:
    """Return the unit of each op, (N,) int64. Units are numbered by their first op in topological order.

    The kinds of units are:

    - "groups": the groups of `placeto.problem.grouping`.
    - "ops": each op alone. But ops that must stay together are one unit, and an op of no cost joins the producer of its
      largest input, or else its first consumer.
    - "paper": the units of "ops", joined by the rule of Mirhoseini et al. 2017 (arXiv 1706.04972, section 3.3): a unit
      whose outputs only one other unit reads joins that unit. This is repeated until nothing changes.
    - "few": the groups if there are at most 100, as in recurrent networks, whose calls are joined. Otherwise the units
      of "ops" in topological order, cut into 32 stretches of equally many units, if there are more than 32.
    """
    graph = problem.graph
    if kind in ("groups", "few"):
        groups = group_ops(problem)
        if kind == "groups" or groups.num_groups <= FEW_GROUPS:
            return groups.group
    unit = _merge(np.arange(graph.num_ops), *_held_together(problem))
    while kind == "paper":
        src, dst, *_ = _arcs(graph, unit, np.zeros(len(graph.edge_src)))
        only = np.bincount(src)[src] == 1
        if not only.any():
            break
        unit = _merge(unit, src[only], dst[only])
    first = np.full(unit.max() + 1, graph.num_ops)
    np.minimum.at(first, unit, graph.position)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    if kind == "few" and len(rank) > STRETCHES:
        rank = rank * STRETCHES // len(rank)
    return rank[unit]


def _held_together(problem: PlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of ops that stay together in all units but groups, as two arrays of equally many ops."""
    graph = problem.graph
    ops: list[int] = []
    partners: list[int] = []
    first: dict[int, int] = {}
    kept = colocation_groups(graph)
    for op in np.flatnonzero(kept >= 0).tolist():
        ops.append(op)
        partners.append(first.setdefault(int(kept[op]), op))
    size = graph.output_bytes[graph.edge_tensor]
    producer = dict.fromkeys(range(graph.num_ops), -1)
    for edge in np.argsort(size, kind="stable").tolist():  # the largest tensor's comes last, and stays
        producer[int(graph.edge_dst[edge])] = int(graph.edge_src[edge])
    consumer = dict(zip(graph.edge_src[::-1].tolist(), graph.edge_dst[::-1].tolist(), strict=True))
    free = (problem.op_time.max(1) == 0) & (kept < 0)
    for op in np.flatnonzero(free).tolist():
        friend = producer[op] if producer[op] >= 0 else consumer.get(op, op)
        ops.append(op)
        partners.append(friend)
    return np.array(ops, np.int64), np.array(partners, np.int64)


def _merge(unit: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Join pairs of units: return the new unit of each op, (N,), from units (N,) and the two units of each pair."""
    count = int(unit.max()) + 1
    links = coo_matrix((np.ones(len(one)), (one, other)), (count, count))
    return connected_components(links, directed=False)[1].astype(np.int64)[unit]


def _arcs(graph: ComputationGraph, unit: np.ndarray, slack: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the arcs between different units, each once, and the tensors on them.

    A tensor that an arc's target reads several times counts once, with the least slack of these edges.

    Args:
        graph: the graph.
        unit: (N,) unit of each op.
        slack: (E,) how long each edge's tensor may travel, in us.

    Returns:
        Sources (M,) and targets (M,) of arcs; and of each tensor on an arc its arc (X,), bytes (X,) and slack (X,).
    """
    src, dst = unit[graph.edge_src], unit[graph.edge_dst]
    crossing = src != dst
    keys = np.stack([src[crossing], dst[crossing], graph.edge_tensor[crossing]])
    tensors, which = np.unique(keys, axis=1, return_inverse=True)
    least = np.full(tensors.shape[1], np.inf)
    np.minimum.at(least, which.ravel(), slack[crossing])
    new = np.ones(tensors.shape[1], bool)
    new[1:] = (np.diff(tensors[:2], axis=1) != 0).any(0)
    arc, size = np.cumsum(new) - 1, graph.output_bytes[tensors[2]].astype(np.float64)
    return tensors[0, new], tensors[1, new], arc, size, least


def _neighbours(src: np.ndarray, dst: np.ndarray, size: np.ndarray, count: int) -> np.ndarray:
    """Return (U, 2 * NEIGHBOURS) float32: positions, in 0..1, of producers and consumers of each unit.

    They are those that exchange most bytes with the unit; -1 where there are fewer. These are the adjacency features of
    the grouper of Mirhoseini et al. 2018 ("A Hierarchical Model for Device Placement").
    """
    table = np.full((count, 2 * NEIGHBOURS), -1.0, np.float32)
    for offset, (mine, theirs) in ((0, (dst, src)), (NEIGHBOURS, (src, dst))):
        arcs, rank = _largest(mine, size)
        table[mine[arcs], offset + rank] = theirs[arcs] / max(count - 1, 1)
    return table


def _producers(src: np.ndarray, dst: np.ndarray, size: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the earlier units (U, NEIGHBOURS) that send most to each unit, and the share of each in their bytes.

    Both are 0 where there are fewer such units. A byte is added to each arc, so that arcs without bytes count, too.
    """
    table, shares = np.zeros((count, NEIGHBOURS), np.int64), np.zeros((count, NEIGHBOURS), np.float32)
    earlier = src < dst
    src, dst, size = src[earlier], dst[earlier], size[earlier] + 1.0
    arcs, rank = _largest(dst, size)
    table[dst[arcs], rank], shares[dst[arcs], rank] = src[arcs], size[arcs]
    return table, shares / np.maximum(shares.sum(1, keepdims=True), 1e-12)


def _largest(unit: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the `NEIGHBOURS` largest arcs of each unit, or all if it has fewer, and their ranks in 0..NEIGHBOURS-1."""
    order = np.lexsort((-size, unit))
    rank = np.arange(len(order)) - np.searchsorted(unit[order], unit[order])
    return order[rank < NEIGHBOURS], rank[rank < NEIGHBOURS]


def _floats(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.float32))


def _table(columns: dict[str, np.ndarray], names: tuple[str, ...]) -> Tensor:
    return _floats(np.stack([columns[name] for name in names], 1))
