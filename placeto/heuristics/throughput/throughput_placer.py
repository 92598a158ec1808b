"""The objective throughput: placements whose greatest load of a device is smallest.

Contiguous splits are found by dynamic programming over ideals (`ideals.py`), and free splits by CP-SAT, which begins
with the contiguous one. If there are too many ideals or ops, groups of ops stay together, as in other searches. If
there are still too many ideals, the dynamic program runs over those of some topological orders only.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from placeto.errors import PlacerError
from placeto.heuristics.throughput.contiguous import ContiguousSplits, OutOfTimeError, all_orders, classes
from placeto.heuristics.throughput.free import can_search, free_split
from placeto.heuristics.throughput.ideals import all_ideals, some_ideals
from placeto.heuristics.throughput.stream import Stream, stream_of
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.schedule import simulate

SECONDS = 10.0
"""Limit of the search for a split if no other one is given."""
_ORDERS = 16  # topological orders for the first splits
_MOST_UNITS = 1000  # with more units, groups of ops stay together
_STEP = 1.1  # factor by which a bound is raised as long as no split is below it
_TOLERANCE = 1e-6  # a load up to this share above the bound counts as optimal: ticks are a tenth of this


@dataclass(frozen=True, eq=False, repr=False)
class StreamPlacement(PlacementResult):
    """A placement for a stream of samples, and the load of each device."""

    loads_us: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (D,) us a sample
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # (D,) bytes, as `Stream.held` counts them
    bound_us: float = 0.0  # no split of its kind has a smaller greatest load
    contiguous_us: float = np.inf  # greatest load of the best contiguous split that was found

    @property
    def greatest_us(self) -> float:
        """The greatest load of a device: the time between two samples in steady state."""
        return float(self.loads_us.max())

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no split of its kind has a smaller greatest load."""
        return self.greatest_us <= self.bound_us * (1 + _TOLERANCE)


def free(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> StreamPlacement:
    """The least maximal load of any split, no worse than that of a contiguous one (needs the extra "exact").

    Args:
        problem: to be placed.
        simulations: ignored.
        seconds: upper limit of the search, which the building of models may exceed; None = 10.
        seed: of the search.

    Raises:
        PlacerError: the graph is a step in micro-batches, no split that fits in memory was found, or OR-tools is
            not installed.
    """
    return _split(problem, seconds, seed, contiguous=False)


def contiguous(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> StreamPlacement:
    """The least maximal load of a split in which devices follow each other in the forward pass, as in a pipeline.

    Args:
        problem: to be placed.
        simulations: ignored.
        seconds: upper limit of the search, which the enumeration of ideals may exceed; None = 10.
        seed: of the topological orders that give the first bound.

    Raises:
        PlacerError: the graph is a step in micro-batches, or no split that fits in memory was found.
    """
    return _split(problem, seconds, seed, contiguous=True)


THROUGHPUT = {"free": free, "contiguous": contiguous}
"""Name -> placer of the objective throughput."""


def _split(problem: PlacementProblem, seconds: float | None, seed: int, contiguous: bool) -> StreamPlacement:
    began, seconds = time.perf_counter(), SECONDS if seconds is None else seconds
    if not contiguous and not can_search():
        raise PlacerError("free splits need OR-tools: pip install ortools, or take --placer contiguous")
    stream = stream_of(problem)
    single_units = stream.num_units
    ideals = all_ideals(stream) if single_units <= _MOST_UNITS else None
    single = ideals is not None  # only ops that must stay together do: bounds hold
    if ideals is None:
        stream = stream_of(problem, group_ops(problem).group)
        ideals = all_ideals(stream) if stream.num_units < single_units else None
    share = seconds if contiguous else 0.6 * seconds
    units, bound_us = _contiguous(stream, ideals, seed, began + share)
    contiguous_us = np.inf if units is None else float(stream.loads_us(units).max())
    work_us = _work_us(stream)
    if not contiguous:
        left = began + seconds - time.perf_counter()
        divided, bound_us = free_split(stream, stream.cost_at(slowest=True), units, left, seed)
        if not stream.links_alike:
            bound_us = work_us
        units = divided if divided is not None else units
    if units is None:
        kind = "contiguous split" if contiguous else "split"
        raise PlacerError(
            f"graph {problem.graph.name!r}: no {kind} that fits in the memory of {problem.cluster.name} was found"
        )
    placement = units[stream.unit]
    schedule = simulate(problem, placement)
    seconds_taken = time.perf_counter() - began
    return StreamPlacement(
        placement,
        schedule.makespan_us,
        schedule.fits,
        1,
        seconds_taken,
        ((1, seconds_taken, schedule.makespan_us),),
        problem,
        "contiguous" if contiguous else "free",
        loads_us=stream.loads_us(units),
        held=stream.held(units),
        bound_us=max(bound_us, work_us) if single else work_us,
        contiguous_us=contiguous_us,
    )


def _contiguous(stream: Stream, ideals: np.ndarray | None, seed: int, until: float) -> tuple[np.ndarray | None, float]:
    """Find the best contiguous split, and a lower bound of the greatest load of all contiguous splits in microseconds.

    If links differ, tensors take the time of the slowest link at first, and then of the fastest, which gives the bound.

    Args:
        stream: the stream to split.
        ideals: (I, U) bool, all ideals; None if there are too many. Then those of some topological orders are used.
        seed: of these orders.
        until: value of `time.perf_counter` at which to stop, once a split is found.

    Returns:
        (U,) device of each unit, None if no split was found, and the bound, 0 if none is proven.
    """
    best, best_us, bound_us = None, np.inf, 0.0
    most_us = float(stream.time_us.max(axis=1).sum() + 2.0 * stream.cost_at(slowest=True).sum())

    def least_us(splits: ContiguousSplits, below_us: float) -> float:
        """Search some splits, and keep the best; returns the least greatest load, or `below_us` if none is below it."""
        nonlocal best, best_us
        units, us = splits.best(below_us, np.inf if best is None else until)
        if units is not None and (own_us := float(stream.loads_us(units).max())) < best_us:
            best, best_us = units, own_us
        return us

    try:
        for slowest in (False,) if stream.links_alike else (True, False):
            cost_us = stream.cost_at(slowest)
            for orders in (1, _ORDERS):
                least_us(ContiguousSplits(stream, cost_us, some_ideals(stream, orders, seed), best_us), best_us)
            if ideals is None:
                continue
            splits, reach_us = ContiguousSplits(stream, cost_us, ideals, best_us), max(_work_us(stream), most_us / 1e3)
            while True:  # the smaller the bound, the fewer ideals can lead to a split below it
                reach_us *= _STEP
                below_us = min(reach_us, best_us)
                us = least_us(splits, below_us)
                if not slowest and all_orders(stream):
                    bound_us = us
                if us < below_us or reach_us >= min(best_us, most_us):
                    break
    except OutOfTimeError:
        pass
    return best, bound_us


def _work_us(stream: Stream) -> float:
    """Lower bound of all splits, us: all work divided by the sum of speeds, see `DeviceClass.speed`."""
    return float(stream.time_us.min(axis=1).sum()) / sum(len(kind.devices) * kind.speed for kind in classes(stream))
