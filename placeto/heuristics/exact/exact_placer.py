"""The optimum, or a bound of it, for small graphs: enumeration, or constraint programming with OR-tools' CP-SAT.

The scheduling model. As in the simulator, an op takes its time on its device and then the device's overhead, a tensor
that is read on another device is sent once per destination (broadcast: once), sends of one link don't overlap, an op
starts no sooner than all its inputs are there, and the makespan ends with the last device and link. The model allows
more schedules than the simulator. A device may run its ops, and a link its sends, in any order and with any idle time.
Ops that take no time don't wait for their device. A broadcast over unequal links reaches each destination in its own
time, and holds the link for the time of the fastest. So every simulated schedule is a schedule of the model, and the
model's optimum is a lower bound of the makespan that the simulator gives for any placement.

The gap between the two is closed by cuts. The model's best placement is simulated and then forbidden, until the model
has no placement left whose makespan is below the best simulated one. If devices can be exchanged without changing op
times and links, all exchanges of a placement are simulated before it is forbidden: their simulated makespans may
differ, since device names break ties.

The model counts the memory of parameters only. The simulation finds placements that don't fit because of other tensors.

Legend: N ops, G groups, D devices, B placements of a batch.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from placeto.errors import PlacerError
from placeto.heuristics.exact.schedule_model import ROUNDING, ScheduleModel, ortools
from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.starts import follow
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult

__all__ = ["PlacerError", "solve", "try_exact"]

MAX_GROUPS = 64
MAX_OPS = 1000
ENUMERATE = 4096  # up to this number of placements, all are simulated
TOLERANCE = 1e-5  # a placement counts as optimal if no other is better by more than this share

_START_SIMULATIONS = 20_000  # well under a second on graphs this small
_DEFAULT_WORK = 2.0  # in CP-SAT's deterministic units, each several seconds
_LEAST_WORK = 0.01  # counted for one solution: building and presolving are not in CP-SAT's count
_MAX_ORBIT = 120  # exchanges of devices to simulate for one placement: all those of five equal devices
_CHUNK = 256  # placements simulated in one batch


def try_exact(evaluator: Evaluator, seed: int) -> None:
    """The optimum of a small graph, by enumeration or constraint programming (needs the extra "exact").

    Raises:
        PlacerError: see `solve`.
    """
    _solve(evaluator, seed, ENUMERATE)


def solve(
    problem: PlacementProblem,
    *,
    simulations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    enumerate_up_to: int = ENUMERATE,
) -> tuple[PlacementResult, float]:
    """Find the best placement within the budget, and a lower bound in microseconds.

    The bound holds for the makespan, under the problem's dispatch, of every placement that keeps groups together and
    fits in memory. If the result itself is faster, the bound is the result's makespan. It equals the result's makespan
    if this is proven optimal (to one part in 100,000), and is inf if it is proven that nothing fits. Without a limit in
    seconds the result is the same on every run, and comes after about half a minute at most.

    Args:
        problem: at most `MAX_GROUPS` groups and `MAX_OPS` ops; proofs can be expected up to about 15 groups.
        simulations: upper limit; None = no limit.
        seconds: upper limit, which the building of the model may exceed; None = no limit.
        seed: of the annealing at the start, and of CP-SAT.
        enumerate_up_to: if there are at most this number of placements, all are simulated.

    Returns:
        The result, and the bound.

    Raises:
        PlacerError: the graph is too large, it has micro-batches and too many placements to try them all, or OR-tools
            is not installed.
    """
    evaluator = Evaluator(problem, None, simulations, seconds)
    bound = _solve(evaluator, seed, enumerate_up_to)
    result = evaluator.result()
    return result, min(bound, result.makespan_us) if result.fits else bound


def _solve(evaluator: Evaluator, seed: int, enumerate_up_to: int) -> float:
    """Solve within the evaluator's budget; returns a lower bound in microseconds for placements that it hasn't scored.

    Raises:
        PlacerError: as `solve`.
    """
    problem, groups = evaluator.problem, evaluator.groups
    if groups.num_groups > MAX_GROUPS or problem.num_ops > MAX_OPS:
        raise PlacerError(
            f"graph {problem.graph.name!r} has {groups.num_groups} groups and {problem.num_ops} ops: "
            f"the placer exact takes up to {MAX_GROUPS} and {MAX_OPS}; use multilevel"
        )
    if problem.num_devices**groups.num_groups <= enumerate_up_to:
        return _enumerate(evaluator)
    if len(gradient_sums(problem.graph).home):
        raise PlacerError(
            f"graph {problem.graph.name!r} is a step in micro-batches, for which the placer exact tries all "
            f"placements: it takes up to {enumerate_up_to:,}, not {problem.num_devices}^{groups.num_groups}; use "
            "multilevel, or one micro-batch"
        )
    if problem.cluster.launch_us.any():
        raise PlacerError(
            f"on {problem.cluster.name} the host takes time to launch ops (launch_us), which the placer exact doesn't "
            "count: use multilevel, or a launch_us of 0"
        )
    ortools()  # raises an error now rather than after the annealing
    _start(evaluator, seed)
    return _branch(evaluator, seed)


def _enumerate(evaluator: Evaluator) -> float:
    """Simulate all placements that the budget allows; returns a lower bound in microseconds, inf if none fits."""
    problem = evaluator.problem
    rows = itertools.product(range(problem.num_devices), repeat=evaluator.groups.num_groups)
    while chunk := list(itertools.islice(rows, _CHUNK)):
        done = evaluator.simulations + len(chunk)
        evaluator.score_batch(np.array(chunk))
        if evaluator.simulations < done:
            return problem.lower_bound_us
    return evaluator.best_score if evaluator.best_fits else math.inf


def _start(evaluator: Evaluator, seed: int) -> None:
    """Anneal for up to a fifth of the budget, and at most `_START_SIMULATIONS` simulations."""
    limit, seconds = evaluator.limit, evaluator.seconds_limit
    simulations = _START_SIMULATIONS if limit is None else min(_START_SIMULATIONS, math.ceil(limit / 5))
    with evaluator.limited(simulations, None if seconds is None else 0.2 * seconds):
        follow(annealing, evaluator, seed)


def _branch(evaluator: Evaluator, seed: int) -> float:
    """Solve the model, simulate its best placement, forbid it, and repeat; returns a lower bound in microseconds."""
    cp_model, problem, seconds = ortools(), evaluator.problem, evaluator.seconds_limit
    bound, work = problem.lower_bound_us, _DEFAULT_WORK
    if evaluator.exhausted:
        return bound
    if _good_enough(evaluator, bound):
        return evaluator.best_score
    model = ScheduleModel(problem, evaluator.groups, evaluator.best_score if evaluator.best_fits else None)
    while not evaluator.exhausted and work > 0:
        if evaluator.best_fits:
            model.at_most(evaluator.best_score * (1 - TOLERANCE))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed % 2**31
        if seconds is None:
            solver.parameters.max_deterministic_time = work
        else:
            solver.parameters.max_time_in_seconds = max(0.01, seconds - evaluator.seconds)
        status = solver.solve(model.model, _watcher(model, evaluator))
        if status == cp_model.INFEASIBLE:
            return evaluator.best_score if evaluator.best_fits else math.inf
        bound = max(bound, solver.best_objective_bound / model.ticks_per_us * (1 - 100 * ROUNDING))
        if _good_enough(evaluator, bound):
            return evaluator.best_score
        if status != cp_model.OPTIMAL:
            break
        placement = model.placement(solver.value)
        orbit = model.orbit(placement, _MAX_ORBIT)
        done = evaluator.simulations + len(orbit)
        evaluator.score_batch(orbit)
        if len(orbit) > _MAX_ORBIT or evaluator.simulations < done:
            break
        model.forbid(placement, solver.objective_value)
        if seconds is None:
            work -= max(_LEAST_WORK, solver.response_proto.deterministic_time)
    return bound


def _good_enough(evaluator: Evaluator, bound: float) -> bool:
    return evaluator.best_fits and evaluator.best_score * (1 - TOLERANCE) <= bound


def _watcher(model: ScheduleModel, evaluator: Evaluator) -> Any:
    """A callback of the solver that simulates each placement which the solver finds."""
    base: Any = ortools().CpSolverSolutionCallback

    class Watcher(base):
        def on_solution_callback(self) -> None:
            evaluator.score(model.placement(self.value))
            if evaluator.exhausted:
                self.stop_search()

    return Watcher()
