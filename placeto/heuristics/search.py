"""Local search over groups: hill climbing and annealing from the best cheap placement.

Legend: N ops, G groups, D devices, M kinds of moves.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from placeto.cost import PlacementProblem
from placeto.grouping import Groups, group_ops
from placeto.heuristics._moves import MOVES, Neighbourhood, State, search
from placeto.heuristics.common import Rule
from placeto.heuristics.list_scheduling import try_etf, try_heft
from placeto.heuristics.naive import try_single
from placeto.heuristics.partition import group_transfers, try_expert, try_metis
from placeto.placer import MEMORY_PENALTY, Evaluator, PlacementResult
from placeto.simulator import simulate

CHEAP: tuple[Rule, ...] = (try_metis, try_etf, try_heft, try_expert, try_single)
"""What `best_cheap` tries, the one that is best most often first."""
DEFAULT_SIMULATIONS = 1000
CLIMB = {"random": 0.7, "set": 0.15, "part": 0.15}
ANNEAL = {"critical": 0.3, "random": 0.1, "swap": 0.1, "set": 0.05, "part": 0.3, "exchange": 0.1, "block": 0.05}
HOT, COLD = 1e-3, 2e-4  # temperature at the beginning and at the end, as shares of the start's makespan
_CHUNK = 1000  # simulations between two looks at the clock, at most
_FIRST_CHUNK = 16  # the same where seconds are limited, before the pace is known
_CHUNK_SECONDS = 0.02


def hillclimb(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Hill climbing: random moves of groups and modules from the best cheap placement, kept unless they are worse."""
    return _local_search(problem, simulations, seconds, seed, CLIMB, 0.0, 0.0)


def anneal(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Annealing at low temperature from the best cheap placement, with most proposals on critical groups."""
    return _local_search(problem, simulations, seconds, seed, ANNEAL, HOT, COLD)


def best_cheap(evaluator: Evaluator, seed: int = 0) -> tuple[np.ndarray, float]:
    """Run the cheap heuristics within the budget: the best placement (G,) of groups, and its penalised makespan.

    If the best one places op by op, it is rounded to groups (each goes where most of its work is) and counts too.
    """
    for rule in CHEAP:
        if not evaluator.exhausted:
            rule(evaluator, seed)
    if evaluator.best is not None and evaluator.best_score < evaluator.best_groups[1]:
        evaluator.score(round_to_groups(evaluator.problem, evaluator.groups, evaluator.best))
    return evaluator.best_groups


def round_to_groups(problem: PlacementProblem, groups: Groups, placement: np.ndarray) -> np.ndarray:
    """(G,) the device on which a placement (N,) has most of each group's work."""
    votes = np.zeros((groups.num_groups, problem.num_devices))
    np.add.at(votes, (groups.group, placement), problem.op_time.mean(axis=1) + 1e-9)
    return votes.argmax(axis=1)


def _local_search(
    problem: PlacementProblem,
    simulations: int | None,
    seconds: float | None,
    seed: int,
    mix: dict[str, float],
    hot: float,
    cold: float,
) -> PlacementResult:
    groups = group_ops(problem)
    if simulations is None and seconds is None:
        simulations = DEFAULT_SIMULATIONS
    evaluator = Evaluator(problem, groups, simulations, seconds)
    start, score = best_cheap(evaluator, seed)
    if problem.num_devices > 1 and score < math.inf:
        local_search(evaluator, start, mix, hot, cold, np.random.default_rng(seed))
    return evaluator.result()


def local_search(
    evaluator: Evaluator,
    start: np.ndarray,
    mix: dict[str, float],
    hot: float,
    cold: float,
    rng: np.random.Generator,
) -> State | None:
    """Spend what is left of the budget on a search from a placement (G,) of groups.

    Args:
        evaluator: with a limit on simulations or seconds.
        start: device of each group; simulated again.
        mix: probability of each kind of move of `MOVES`.
        hot: temperature at the beginning, as a share of the start's makespan; 0 accepts nothing worse.
        cold: temperature at the end.
        rng: source of randomness.

    Returns:
        Where the search ended; None if the budget was spent before.
    """
    if evaluator.exhausted:
        return None
    problem = evaluator.problem
    near, state = neighbourhood(problem), _start(evaluator, start)
    chances = np.cumsum([mix.get(move, 0.0) for move in MOVES])
    chances /= chances[-1]
    hot_us, ratio = hot * float(state.score[0]), cold / hot if hot > 0.0 else 1.0
    logs = np.empty(_CHUNK, np.int64), np.empty(_CHUNK)
    began, pace = evaluator.progress, 0.0  # pace: seconds a simulation
    count = _CHUNK if evaluator.seconds_limit is None else _FIRST_CHUNK
    while not evaluator.exhausted:
        count = int(min(count, _CHUNK, evaluator.remaining))
        before, done = evaluator.seconds, (evaluator.progress - began) / (1.0 - began)
        share = count / evaluator.limit if evaluator.limit is not None else 0.0
        if evaluator.seconds_limit is not None:
            share = max(share, pace * count / evaluator.seconds_limit)
        until = min(1.0, done + share / (1.0 - began))
        logged = search(
            problem.arrays, near, state, chances, rng, count, hot_us * ratio**done, hot_us * ratio**until, *logs
        )
        improvements = list(zip(logs[0][:logged].tolist(), logs[1][:logged].tolist(), strict=True))
        evaluator.absorb(state.best, float(state.score[2]), float(state.score[3]), count, improvements)
        pace = (evaluator.seconds - before) / count
        if evaluator.seconds_limit is not None:
            left = min(_CHUNK_SECONDS, evaluator.seconds_limit - evaluator.seconds)
            count = max(1, int(left / pace))
    return state


def _start(evaluator: Evaluator, start: np.ndarray) -> State:
    """Simulate the start and see which groups are critical in it."""
    problem, groups = evaluator.problem, evaluator.groups
    schedule = simulate(problem, start[groups.group])
    evaluator.absorb(schedule.placement, schedule.makespan_us, schedule.overflow, 1)
    takes_time = problem.op_time[np.arange(problem.num_ops), schedule.placement] > 0.0
    tight = takes_time & (schedule.slack_us <= 1e-9 * schedule.makespan_us)
    critical = np.zeros(groups.num_groups, np.int64)
    held = np.unique(groups.group[tight])
    critical[: len(held)] = held
    score = schedule.makespan_us * (1.0 + MEMORY_PENALTY * schedule.overflow)
    return State(
        placement=schedule.placement.copy(),
        device=np.array(start, np.int64),
        best=schedule.placement.copy(),
        critical=critical,
        num_critical=np.array([len(held)]),
        score=np.array([score, score, schedule.makespan_us, schedule.overflow]),
        tried=np.zeros(len(MOVES), np.int64),
        gained=np.zeros(len(MOVES)),
    )


@lru_cache(maxsize=64)
def neighbourhood(problem: PlacementProblem) -> Neighbourhood:
    """The groups of a problem, their sets and their neighbours, as flat arrays; cached."""
    groups = group_ops(problem)
    ops = np.argsort(groups.group, kind="stable")
    pairs, _ = group_transfers(problem)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    ids = np.arange(groups.num_groups + 1)
    sets = np.concatenate([np.zeros(0, np.int64), *groups.sets])
    home_place = np.argsort(sets, kind="stable")
    set_ptr = np.cumsum([0, *map(len, groups.sets)])
    return Neighbourhood(
        group=groups.group,
        op_ptr=np.searchsorted(groups.group[ops], ids),
        ops=ops,
        set_ptr=set_ptr,
        sets=sets,
        home_ptr=np.searchsorted(sets[home_place], ids),
        home=np.searchsorted(set_ptr, home_place, side="right") - 1,
        home_place=home_place,
        near_ptr=np.searchsorted(both[:, 0], ids),
        near=np.ascontiguousarray(both[:, 1]),
    )
