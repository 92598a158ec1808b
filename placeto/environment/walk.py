"""The walk of the Placeto paper over one graph: groups in topological order, each placed in turn.

Addanki et al., "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning", NeurIPS
2019, arXiv 1906.08879, section 3.1. All episodes begin at one placement, and every move is kept. Besides makespans the
policy needs only the start of each group, so nothing else is observed. A move that changes nothing isn't simulated.

Legend: G groups, D devices, B episodes, F = 5 + D features of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from placeto.environment.instance import Instance, Measure
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem
from placeto.problem.grouping import expand
from placeto.simulator import kernel, memory
from placeto.simulator.schedule import PARALLEL_OPS
from placeto.simulator.threads import in_parts

COST, OUTPUT, VISITED, CURRENT, START = range(5)
"""Columns of a group's features. The one-hot device of the group follows them."""
NUM_FEATURES = 5


@dataclass(frozen=True, eq=False)
class Walk:
    """One graph to walk over."""

    instance: Instance
    measure: Measure | None = None  # if given, makespans are measured, not simulated
    number: int = 0  # number of the instance, for `measure`

    @property
    def num_groups(self) -> int:
        """G, the number of groups."""
        return self.instance.groups.num_groups

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return self.instance.problem.num_devices

    @cached_property
    def order(self) -> np.ndarray:
        """(G,) int64, the groups in the order in which they are visited."""
        return np.argsort(self.instance.traversal)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(G, 2) float32, run time of each group (a mean over devices), and bytes that other groups read of it.

        Each column is divided by its largest value in the graph.
        """
        problem, arrays = self.instance.problem, self.instance.arrays
        cost = np.bincount(self.instance.groups.group, problem.op_time.mean(axis=1), self.num_groups)
        reads = np.unique(np.stack([self.instance.groups.group[arrays.arc_src], arrays.arc_tensor]), axis=1)
        output = np.bincount(reads[0], problem.graph.output_bytes[reads[1]], self.num_groups)
        sizes = np.stack([cost, output], 1)
        return (sizes / np.maximum(sizes.max(axis=0), 1e-12)).astype(np.float32)

    def begin(self, count: int, placement: np.ndarray) -> WalkState:
        """Begin `count` episodes at one placement (G,)."""
        placements = np.tile(placement, (count, 1))
        makespan, start = self.simulate(placements)
        return WalkState(self, 0, placements, makespan, start, makespan, placements, count)

    def random_start(self, seed: int = 0) -> np.ndarray:
        """(G,) int64, a uniformly random placement."""
        return np.random.default_rng(seed).integers(self.num_devices, size=self.num_groups)

    def simulate(self, placement: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Simulate placements (B, G); returns makespans (B,) and the start of each group (B, G) in microseconds.

        Makespans are penalised for memory and relative to the best single device.
        """
        problem, groups, count = self.instance.problem, self.instance.groups, len(placement)
        makespan, overflow, start = np.empty(count), np.empty(count), np.empty((count, self.num_groups))
        placement = np.ascontiguousarray(placement)
        rows = partial(_starts, problem.arrays, groups.group, placement, makespan, overflow, start)
        in_parts(rows, count, count * problem.num_ops >= PARALLEL_OPS)
        if self.measure is not None:
            makespan = np.array([self.measure(self.number, expand(groups, row)) for row in placement])
        return memory.penalised(makespan, overflow) / problem.single_device_us, start


@dataclass(frozen=True, eq=False)
class WalkState:
    """B episodes, each after the same number of moves."""

    walk: Walk
    step: int  # number of moves so far
    placement: np.ndarray  # (B, G) int64
    makespan: np.ndarray  # (B,) penalised, relative to the best single device
    start: np.ndarray  # (B, G) microseconds at which each group starts
    best: np.ndarray  # (B,) best makespan met
    best_placement: np.ndarray  # (B, G)
    simulated: int  # number of placements simulated so far; moves that keep the device need none

    @property
    def current(self) -> int:
        """The group whose turn it is."""
        return int(self.walk.order[self.step % self.walk.num_groups])

    @property
    def features(self) -> np.ndarray:
        """(B, G, F) float32: run time, output, visited, current, start relative to the current group's, device.

        Run times and outputs are divided by their largest value in the graph, and starts by the largest difference in
        the episode.
        """
        walk, (count, groups) = self.walk, self.placement.shape
        features = np.zeros((count, groups, NUM_FEATURES + walk.num_devices), np.float32)
        features[:, :, COST : OUTPUT + 1] = walk.sizes
        features[:, walk.order[: self.step % groups], VISITED] = 1.0
        features[:, self.current, CURRENT] = 1.0
        since = self.start - self.start[:, self.current, None]
        features[:, :, START] = since / np.maximum(np.abs(since).max(axis=1, keepdims=True), 1e-12)
        rows, columns = np.indices(self.placement.shape)
        features[rows, columns, NUM_FEATURES + self.placement] = 1.0
        return features

    def move(self, device: np.ndarray) -> WalkState:
        """Place the current group of each episode on a device (B,); returns the state at the next group."""
        placement, makespan, start = self.placement.copy(), self.makespan.copy(), self.start.copy()
        placement[:, self.current] = device
        changed = np.flatnonzero(placement[:, self.current] != self.placement[:, self.current])
        if len(changed):
            makespan[changed], start[changed] = self.walk.simulate(placement[changed])
        better = makespan < self.best
        best = np.where(better, makespan, self.best)
        best_placement = np.where(better[:, None], placement, self.best_placement)
        simulated = self.simulated + len(changed)
        return WalkState(self.walk, self.step + 1, placement, makespan, start, best, best_placement, simulated)


@compiled()
def _starts(
    flat: FlatProblem,
    group: np.ndarray,
    placement: np.ndarray,
    makespan: np.ndarray,
    overflow: np.ndarray,
    start: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Simulate placements (B, G); fill `makespan` (B,) us, memory `overflow` (B,) and the groups' `start` (B, G) us.

    Only those from `first` to before `last` are simulated.
    """
    for b in range(first, last):
        makespan[b], overflow[b] = _start_one(flat, group, placement[b], start[b])


@compiled(inner=True)
def _start_one(flat: FlatProblem, group: np.ndarray, placement: np.ndarray, start: np.ndarray) -> tuple[float, float]:
    ops, record = np.empty(len(group), np.int64), kernel.new_record(flat)
    for i in range(len(group)):
        ops[i] = placement[group[i]]
    makespan, overflow, _ = memory.run_and_measure(flat, ops, record, np.inf)
    start[:] = np.inf
    for i in range(len(group)):
        start[group[i]] = min(start[group[i]], record.start[i])
    return makespan, overflow
