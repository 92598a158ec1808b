"""The optimum, or a bound of it, for small graphs: enumeration, or constraint programming with OR-tools' CP-SAT.

The scheduling model. As in the simulator, an op takes its time on its device and then the device's overhead, a tensor
that is read on another device is sent once per destination (broadcast: once), sends of one link don't overlap, an op
starts when all its inputs are there, and the makespan ends with the last device and link. Unlike in the simulator, a
device may run its ops, and a link its sends, in any order and with any idle time; ops of no time don't wait for their
device; and a broadcast over unequal links reaches each destination in its own time and holds the link for that of the
fastest. So every simulated schedule is a schedule of the model, and the model's optimum bounds from below what the
simulator can give for any placement.

The gap between the two is closed by cuts: the model's best placement is simulated and forbidden, until what is left is
no better than the best makespan simulated. Where devices can be exchanged without changing op times and links, all
exchanges of a placement are simulated before it is forbidden, since names break ties.

Of memory the model knows parameters only; placements that don't fit for their tensors are found out by simulation.

Legend: N ops, G groups, D devices, B placements of a batch.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from placeto.heuristics.exact.schedule_model import ROUNDING, ExactError, ScheduleModel, ortools
from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.starts import follow
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult

__all__ = ["ExactError", "solve", "try_exact"]

MAX_GROUPS = 64
MAX_OPS = 1000
ENUMERATE = 4096  # up to so many placements are simply all simulated
TOLERANCE = 1e-5  # a placement counts as optimal if no other is better by more than this share

_START_SIMULATIONS = 20_000  # well under a second on graphs this small
_DEFAULT_WORK = 2.0  # in CP-SAT's deterministic units, each several seconds
_LEAST_WORK = 0.01  # counted for one solution: building and presolving are not in CP-SAT's count
_MAX_ORBIT = 120  # exchanges of devices to simulate for one placement: all of those of five alike
_CHUNK = 256


def try_exact(evaluator: Evaluator, seed: int) -> None:
    """The optimum of a small graph, by enumeration or constraint programming (needs the extra "exact").

    Raises:
        ExactError: see `solve`.
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
    """The best placement found within the budget, and a lower bound in microseconds.

    The bound holds for the makespan, under the problem's dispatch, of every placement that keeps groups together and
    fits in memory, unless the result itself is faster. It equals the result's makespan where that is proven optimal (to
    one part in 100,000), and is inf where it is proven that nothing fits. With a limit on simulations alone, or none,
    the result is the same on every run, and comes after half a minute or so at most.

    Args:
        problem: at most `MAX_GROUPS` groups and `MAX_OPS` ops; proofs can be expected up to about 15 groups.
        simulations: at most so many.
        seconds: at most so many, but for the building of the model.
        seed: of the annealing at the start, and of CP-SAT.
        enumerate_up_to: all placements are simulated where they are no more than that.

    Raises:
        ExactError: the graph is too large, it has micro-batches and too many placements to try them all, or OR-tools is
            not installed.
    """
    evaluator = Evaluator(problem, None, simulations, seconds)
    bound = _solve(evaluator, seed, enumerate_up_to)
    result = evaluator.result()
    return result, min(bound, result.makespan_us) if result.fits else bound


def _solve(evaluator: Evaluator, seed: int, enumerate_up_to: int) -> float:
    """Lower bound in microseconds, of all placements that the evaluator hasn't scored."""
    problem, groups = evaluator.problem, evaluator.groups
    if groups.num_groups > MAX_GROUPS or problem.num_ops > MAX_OPS:
        raise ExactError(
            f"graph {problem.graph.name!r} has {groups.num_groups} groups and {problem.num_ops} ops: "
            f"the placer exact takes up to {MAX_GROUPS} and {MAX_OPS}; use multilevel"
        )
    if problem.num_devices**groups.num_groups <= enumerate_up_to:
        return _enumerate(evaluator)
    if len(gradient_sums(problem.graph).home):
        raise ExactError(
            f"graph {problem.graph.name!r} is a step in micro-batches, for which the placer exact tries all "
            f"placements: it takes up to {enumerate_up_to:,}, not {problem.num_devices}^{groups.num_groups}; use "
            "multilevel, or one micro-batch"
        )
    ortools()  # an error now rather than after the start
    _start(evaluator, seed)
    return _branch(evaluator, seed)


def _enumerate(evaluator: Evaluator) -> float:
    """Simulate all placements; lower bound in microseconds."""
    problem = evaluator.problem
    rows = itertools.product(range(problem.num_devices), repeat=evaluator.groups.num_groups)
    while chunk := list(itertools.islice(rows, _CHUNK)):
        done = evaluator.simulations + len(chunk)
        evaluator.score_batch(np.array(chunk))
        if evaluator.simulations < done:
            return problem.lower_bound_us
    return evaluator.best_score if evaluator.best_fits else math.inf


def _start(evaluator: Evaluator, seed: int) -> None:
    """Anneal for up to a fifth of the budget."""
    limit, seconds = evaluator.limit, evaluator.seconds_limit
    simulations = _START_SIMULATIONS if limit is None else min(_START_SIMULATIONS, math.ceil(limit / 5))
    with evaluator.limited(simulations, None if seconds is None else 0.2 * seconds):
        follow(annealing, evaluator, seed)


def _branch(evaluator: Evaluator, seed: int) -> float:
    """Solve the model, simulate, forbid, again; lower bound in microseconds."""
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
    """A callback that simulates every placement the solver comes by."""
    base: Any = ortools().CpSolverSolutionCallback

    class Watcher(base):
        def on_solution_callback(self) -> None:
            evaluator.score(model.placement(self.value))
            if evaluator.exhausted:
                self.stop_search()

    return Watcher()
