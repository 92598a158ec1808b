"""The result of a placer.

Legend: N ops, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placeto.problem.dispatch import order_of_lists
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan
from placeto.problem.units import format_us
from placeto.simulator.schedule import Schedule, simulate, with_sums_placed

_ROUNDS = 5  # simulations after which `as_listed` ends, even if the lists have changed again


@dataclass(frozen=True, eq=False)
class PlacementResult:
    """The best placement that a placer found, with the simulations and seconds that the search took."""

    placement: np.ndarray  # (N,) int64, device of each op; of sums of gradients the one that lowering gives them
    makespan_us: float  # makespan that `simulate` gives for it on `problem`
    fits: bool  # whether no device exceeds its memory
    simulations: int  # simulations that the search took
    seconds: float  # seconds that the search took
    history: tuple[tuple[int, float, float], ...]  # (simulations, seconds, makespan_us) of each improvement
    problem: PlacementProblem  # the problem, under the dispatch that was chosen
    placer: str = ""  # name of the placer, if it has one
    order: np.ndarray | None = None  # (N,) the ops in the order that each device must keep; None = by dispatch
    whole_modules: tuple[str, ...] | None = None  # modules that were kept whole; None = any could be divided
    plan: Plan | None = None  # the plan whose placement it is; None for a free placement

    def __post_init__(self) -> None:
        if len(gradient_sums(self.problem.graph).home):
            object.__setattr__(self, "placement", with_sums_placed(self.problem, self.placement))

    @classmethod
    def of(cls, schedule: Schedule, order: np.ndarray | None = None) -> PlacementResult:
        """Return a schedule, and the `order` (N,) in which it was simulated, as the result of one simulation."""
        makespan, fits, problem = schedule.makespan_us, schedule.fits, schedule.problem
        return cls(schedule.placement, makespan, fits, 1, 0.0, (), problem, order=order, plan=schedule.plan)

    def __repr__(self) -> str:
        used = f"{len(np.unique(self.placement))} of {self.problem.num_devices} devices"
        spent = f"{self.simulations} simulations in {self.seconds:.2f} s{f' by {self.placer}' if self.placer else ''}"
        fits = "fits" if self.fits else "doesn't fit"
        what = f"{self.problem.graph.name!r}, {self.problem.graph.mode}"
        return f"PlacementResult({what}, {format_us(self.makespan_us)}, {used}, {fits}, {spent})"

    def schedule(self) -> Schedule:
        """Simulate the placement, and return its schedule; the makespan is `makespan_us`."""
        return simulate(self.problem, self.placement, order=self.order, plan=self.plan)

    @cached_property
    def peak_memory(self) -> dict[str, int]:
        """Name of each device -> most bytes that it has at any time."""
        return dict(zip(self.problem.cluster.device_names, self.schedule().peak_memory.tolist(), strict=True))

    def devices(self) -> dict[str, str]:
        """Name of each op -> name of its device."""
        names, graph = self.problem.cluster.device_names, self.problem.graph
        return {op: names[device] for op, device in zip(graph.op_names, self.placement.tolist(), strict=True)}


def as_listed(problem: PlacementProblem, placement: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, Schedule]:
    """Return an order (N,) that follows from the lists in which the devices run their ops, and its schedule.

    If a sum of gradients waits for the part of another device, it comes later in its device's list than in `order`.
    """
    schedule = simulate(problem, placement, order=order)
    for _ in range(_ROUNDS):
        listed = order_of_lists(problem.graph, [ops.tolist() for ops in schedule.device_order])
        if np.array_equal(listed, order):
            break
        order, schedule = listed, simulate(problem, placement, order=listed)
    return order, schedule
