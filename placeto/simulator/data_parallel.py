"""Data parallelism on a cluster, with which a placement is compared: a replica of the model on each device.

Each of D replicas runs the whole step on its own batch, which is as large as the graph's. Then the gradients are summed
over all devices by a ring all-reduce (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
workstations, Journal of Parallel and Distributed Computing 69, 2009): 2 (D - 1) rounds, in each of which every device
sends a D-th of the gradients to the next.

Legend: D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from placeto.problem.cluster import Cluster, crossings
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

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
    ring, time_us = best_ring(problem.cluster, gradients)
    return DataParallel(
        replica_us=max(replica.makespan_us for replica in replicas),
        all_reduce_us=time_us,
        gradient_bytes=gradients,
        ring=ring,
        peak_memory=peak,
        fits=bool((peak <= problem.cluster.memory).all()),
    )


def best_ring(cluster: Cluster, size: int) -> tuple[tuple[int, ...], float]:
    """Return the ring over which all devices sum `size` bytes the fastest, and the microseconds that it takes.

    With up to eight devices it is the best of all rings. With more, it has the devices in their order.

    >>> from placeto.problem.cluster import load_cluster
    >>> best_ring(load_cluster("2xp100"), 12_000_000)  # two rounds of 6 MB at 12 GB/s and 15 us of latency each
    ((0, 1), 1030.0)
    """
    if cluster.num_devices == 1 or size == 0:
        return tuple(range(cluster.num_devices)), 0.0
    chunk, masks = size / cluster.num_devices, crossings(cluster)
    alone = cluster.latency_us + chunk / cluster.bandwidth
    rest = tuple(range(1, cluster.num_devices))
    best: tuple[float, tuple[int, ...]] = (np.inf, ())
    for order in permutations(rest) if cluster.num_devices <= _ALL_RINGS else [rest]:
        ring = (0, *order)
        sends = np.array(ring), np.array((*order, 0))
        slowest = float(alone[sends].max())
        if slowest < best[0]:
            for link, mask in zip(cluster.shared_links, masks, strict=True):  # a round's sends share it
                crossed = mask[sends]
                times = cluster.latency_us[sends] + crossed.sum() * chunk / link.bandwidth
                slowest = max(slowest, float(times[crossed].max(initial=0.0)))
            best = min(best, (slowest, ring))
    return best[1], 2 * (cluster.num_devices - 1) * best[0]


def ratio(time_us: float, other_us: float) -> float:
    """Return `time_us` / `other_us`; if the latter is 0, then 1 if both are 0, else inf."""
    if other_us > 0:
        return float(time_us / other_us)
    return 1.0 if time_us == 0 else np.inf
