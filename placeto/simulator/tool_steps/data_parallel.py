"""Data parallelism on a cluster, with which a placement is compared: a replica of the model on each device.

Each of D replicas runs the whole step on its own batch, which is as large as the graph's. Then the gradients are summed
over all devices by a ring all-reduce (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
workstations, Journal of Parallel and Distributed Computing 69, 2009): 2 (D - 1) rounds, in each of which every device
sends a D-th of the gradients to the next. Its transfers are simulated, over links as collectives reach them.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from placeto.problem.cluster import crossings
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from placeto.simulator.tool_steps.routes import ring, shares
from placeto.simulator.tool_steps.step_graph import Exchange, StepGraph, exchange_links

_ALL_RINGS = 8  # all rings are tried for at most this many devices


@dataclass(frozen=True, eq=False)
class DataParallel:
    """Time and memory of a step of data parallelism. It processes D batches, while a placement's step processes one."""

    replica_us: float  # microseconds of the step on one device, the slowest one
    all_reduce_us: float  # microseconds of summing the gradients
    gradient_bytes: int  # bytes of the gradients of one replica
    ring: tuple[int, ...]  # (D,) devices, each of which sends to the next, and the last to the first
    peak_memory: np.ndarray  # (D,) int64, bytes of a replica on each device
    fits: bool  # whether a replica fits on each device

    @property
    def least_us(self) -> float:
        """Microseconds of the step if the whole all-reduce runs while the replicas compute."""
        return max(self.replica_us, self.all_reduce_us)

    @property
    def most_us(self) -> float:
        """Microseconds of the step if the all-reduce begins when all gradients are computed."""
        return self.replica_us + self.all_reduce_us

    @property
    def batches(self) -> int:
        """D, the number of batches that a step processes."""
        return len(self.ring)

    def gain(self, makespan_us: float) -> tuple[float, float]:
        """Samples per second divided by those of a placement with this makespan: at least, and at most."""
        placed_us = self.batches * makespan_us
        return ratio(placed_us, self.most_us), ratio(placed_us, self.least_us)


def data_parallel(problem: PlacementProblem) -> DataParallel:
    """Simulate a replica on each device, and compute the time of the all-reduce of the gradients.

    The gradients have the size of the graph's trained parameters, so there are none in inference. Buckets, in which a
    framework copies gradients, are not counted.
    """
    devices = range(problem.num_devices)
    replicas = [simulate(problem, np.full(problem.num_ops, device)) for device in devices]
    peak = np.array([replica.peak_memory[device] for device, replica in zip(devices, replicas, strict=True)])
    gradients = int(problem.graph.trained_bytes.sum())
    order, time_us = best_ring(problem, gradients)
    return DataParallel(
        replica_us=max(replica.makespan_us for replica in replicas),
        all_reduce_us=time_us,
        gradient_bytes=gradients,
        ring=order,
        peak_memory=peak,
        fits=bool((peak <= problem.cluster.memory).all()),
    )


def best_ring(problem: PlacementProblem, size: int) -> tuple[tuple[int, ...], float]:
    """Return the ring over which all devices sum up `size` bytes, and the microseconds that it takes.

    With up to eight devices it is the ring whose busiest link is busy for the shortest time. With more, it has the
    devices in their order.
    """
    cluster, devices = problem.cluster, tuple(range(problem.num_devices))
    if len(devices) == 1 or size == 0:
        return devices, 0.0
    part, masks = size / len(devices), crossings(cluster)
    alone = cluster.latency_us + part / cluster.bandwidth

    def busy_us(order: tuple[int, ...]) -> list[float]:
        """Return how long links are busy in a round, the busiest first."""
        sends = [*order], [*order[1:], order[0]]
        pairs = zip(cluster.shared_links, masks, strict=True)
        shared = [float(mask[sends].sum()) * part / link.bandwidth for link, mask in pairs]
        return sorted([*alone[sends].tolist(), *shared], reverse=True)

    rings = ((0, *order) for order in permutations(devices[1:])) if len(devices) <= _ALL_RINGS else [devices]
    best = min(rings, key=busy_us)
    return best, ring_us(problem, best, size)


def ring_us(problem: PlacementProblem, devices: Sequence[int], size: int) -> float:
    """Return the microseconds in which devices sum up `size` bytes round a ring, as simulated transfers."""
    cluster, as_they_arrive = exchange_links(problem.cluster, devices, 2 * (len(devices) - 1))
    step = StepGraph(problem, np.zeros(problem.num_ops, np.int64), cluster)
    sizes = shares(size, len(devices))
    parts = Exchange("{} on {}".format, sizes, ring(devices), in_place=True, as_they_arrive=as_they_arrive)
    step.all_reduce(parts, devices)
    problem_of_step, placement, order = step.built(listed=True)
    return simulate(problem_of_step, placement, order=order).makespan_us


def ratio(time_us: float, other_us: float) -> float:
    """Return `time_us` / `other_us`; if the latter is 0, then 1 if both are 0, else inf."""
    if other_us > 0:
        return float(time_us / other_us)
    return 1.0 if time_us == 0 else np.inf
