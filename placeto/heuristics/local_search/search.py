"""Local search over groups: hill climbing, iterated local search and annealing, from the best cheap placement.

Legend: N ops, G groups, D devices, M kinds of moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from placeto.heuristics.baechi import try_m_sct, try_m_topo
from placeto.heuristics.common import Rule
from placeto.heuristics.list_scheduling import try_etf, try_heft
from placeto.heuristics.local_search.local_search import LocalSearch
from placeto.heuristics.naive import try_fastest, try_roundrobin, try_single
from placeto.heuristics.partition import try_expert, try_metis
from placeto.heuristics.repair import repair
from placeto.problem.grouping import Groups, split_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult

CHEAP: tuple[Rule, ...] = (try_metis, try_etf, try_heft, try_expert, try_single)
"""What training begins from, the one that is best most often first."""
LP_OPS = 2000
"""Ops of a graph for which m-SCT's linear programs count as cheap: .2 to .6 s."""
_LP_SHARE = 0.05  # of the time that is left, at most, for each of these
CONSTRUCTIVE: tuple[Rule, ...] = (
    *CHEAP,
    partial(try_m_sct, most_ops=LP_OPS, share=_LP_SHARE),
    try_m_topo,
    try_fastest,
    try_roundrobin,
)
"""What `best_cheap` tries: all placers that build one placement. m-ETF's are among those of ETF."""
DEFAULT_SIMULATIONS = 1000
Method = Callable[[Evaluator, np.ndarray, np.random.Generator], None]
"""Spends what is left of a budget on a search from a placement (G,) of groups."""

CLIMB = {"random": 0.6, "swap": 0.1, "set": 0.15, "part": 0.15}
ANNEAL = {
    "guided": 0.3,
    "critical": 0.3,
    "random": 0.15,
    "swap": 0.1,
    "set": 0.04,
    "part": 0.05,
    "exchange": 0.06,
    "block": 0.03,
}
ANNEAL_FEW = {
    "guided": 0.2,
    "critical": 0.15,
    "random": 0.3,
    "swap": 0.1,
    "set": 0.1,
    "part": 0.1,
    "exchange": 0.03,
    "block": 0.02,
}
"""The same where single moves are so few that the critical ones are soon known."""
_FEW = 100
HOT, COLD = 0.15, 0.01  # share of the proposals that annealing accepts though worse, at its beginning and its end
_WARMTH = 0.01  # so much at the beginning for each simulation that a single move can have, up to HOT
_PARTS = 8  # into how many parts a group is split for the second half of multilevel annealing, on the average
_MOST_PARTS = 1000  # of all groups together
_SPLIT = 0.4  # share of the simulations that go to the parts
_ENOUGH = 3.0  # groups are split if there are so many simulations for each move of one
_PATIENCE = 1.0  # proposals without an improvement that end a descent, as a multiple of the number of single moves
_WORSE = 0.002  # iterated local search goes on from a descent that ends so much above its best
_KICKED = 0.03  # share of the groups that are moved at random to begin a new descent


def hillclimb(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Hill climbing: random moves of groups and modules from the best cheap placement, kept unless they are worse."""
    return search_from_cheap(climb, problem, simulations, seconds, seed)


def ils(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Iterated local search: descend, move a few groups or a module at random, descend again, go on from the better."""
    return search_from_cheap(iterate, problem, simulations, seconds, seed)


def anneal(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Annealing from the best cheap placement, with most proposals on critical groups; few get worse."""
    return search_from_cheap(annealing, problem, simulations, seconds, seed)


def multilevel(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Multilevel annealing: of groups, then of the parts they are split into; with few simulations of groups alone."""
    return search_from_cheap(annealing_of_parts, problem, simulations, seconds, seed)


def climb(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """The method behind `hillclimb`; ends early where no single move is left to try."""
    LocalSearch(evaluator, start, CLIMB, rng).run()


def annealing(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """The method behind `anneal`: the fewer the simulations for the number of moves, the colder it begins."""
    moves = evaluator.groups.num_groups * (evaluator.problem.num_devices - 1)
    hot = min(HOT, max(COLD, _WARMTH * evaluator.expected / moves))
    LocalSearch(evaluator, start, ANNEAL if moves >= _FEW else ANNEAL_FEW, rng).run(hot, COLD)


def annealing_of_parts(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """The method behind `multilevel`; the evaluator's groups are then parts of its groups before."""
    problem, groups = evaluator.problem, evaluator.groups
    enough = evaluator.expected >= _ENOUGH * groups.num_groups * (problem.num_devices - 1)
    parts = parts_of(problem, groups) if enough else groups
    if parts.num_groups == groups.num_groups:
        annealing(evaluator, start, rng)
        return
    with evaluator.limited_to(1.0 - _SPLIT):
        annealing(evaluator, start, rng)
    evaluator.regroup(parts)
    anneal_within(evaluator, rng)


def parts_of(problem: PlacementProblem, groups: Groups, each: int = _PARTS) -> Groups:
    """The parts that groups are split into, `each` to a group on the average: what multilevel annealing anneals."""
    return split_groups(problem, groups, max(groups.num_groups, min(each * groups.num_groups, _MOST_PARTS)))


def anneal_within(evaluator: Evaluator, rng: np.random.Generator) -> None:
    """Anneal from the best placement of the evaluator's groups, if anything is left of the budget."""
    if not evaluator.exhausted:
        annealing(evaluator, evaluator.best_groups[0], rng)


def iterate(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """The method behind `ils`."""
    search = LocalSearch(evaluator, start, ANNEAL, rng)
    groups, devices = evaluator.groups.num_groups, evaluator.problem.num_devices
    patience = math.ceil(_PATIENCE * groups * (devices - 1))
    home, home_score = search.device.copy(), search.score
    while not evaluator.exhausted:
        search.run(patience=patience)
        if search.score <= home_score * (1.0 + _WORSE):
            home, home_score = search.device.copy(), search.score
        if not evaluator.exhausted:
            search.restart(_kicked(home, evaluator, rng))


def _kicked(device: np.ndarray, evaluator: Evaluator, rng: np.random.Generator) -> np.ndarray:
    """A placement (G,) with a few groups moved at random, or a whole set of them together."""
    sets, devices = evaluator.groups.sets, evaluator.problem.num_devices
    kicked = device.copy()
    if sets and rng.random() < 0.5:
        members = sets[rng.integers(len(sets))]
        together = rng.random() < 0.5
        kicked[members] = rng.integers(devices) if together else (kicked[members] + rng.integers(1, devices)) % devices
    else:
        count = min(len(device), max(2, round(_KICKED * len(device))))
        chosen = rng.choice(len(device), count, replace=False)
        kicked[chosen] = rng.integers(devices, size=count)
    return kicked


def best_cheap(evaluator: Evaluator, seed: int = 0) -> tuple[np.ndarray, float]:
    """Run the constructive placers within the budget: the best placement (G,) of groups, and its penalised makespan.

    What doesn't fit into memory is repaired, as these placers do. m-SCT does without linear programs above `LP_OPS`
    ops. If the best placement is one op by op, it is rounded to groups (each goes where most of its work is) and
    counts too.
    """
    for rule in CONSTRUCTIVE:
        if not evaluator.exhausted:
            with evaluator.anew():
                rule(evaluator, seed)
                if not evaluator.best_fits:
                    repair(evaluator)
    round_best(evaluator)
    return evaluator.best_groups


def round_best(evaluator: Evaluator) -> None:
    """Where the best placement doesn't keep groups together, score what is next to it and does."""
    if evaluator.best is not None and evaluator.best_score < evaluator.best_groups[1]:
        evaluator.score(round_to_groups(evaluator.problem, evaluator.groups, evaluator.best))


def round_to_groups(problem: PlacementProblem, groups: Groups, placement: np.ndarray) -> np.ndarray:
    """(G,) the device on which a placement (N,) has most of each group's work."""
    votes = np.zeros((groups.num_groups, problem.num_devices))
    np.add.at(votes, (groups.group, placement), problem.op_time.mean(axis=1) + 1e-9)
    return votes.argmax(axis=1)


def search_from_cheap(
    method: Method, problem: PlacementProblem, simulations: int | None, seconds: float | None, seed: int
) -> PlacementResult:
    """Follow a method from the best cheap placement, within a budget; `DEFAULT_SIMULATIONS` where there is none."""
    if simulations is None and seconds is None:
        simulations = DEFAULT_SIMULATIONS
    evaluator = Evaluator(problem, None, simulations, seconds)
    follow(method, evaluator, seed)
    return evaluator.result()


def follow(method: Method, evaluator: Evaluator, seed: int) -> None:
    """Follow a method from the best cheap placement, as far as the evaluator's budget goes."""
    start, score = best_cheap(evaluator, seed)
    if evaluator.problem.num_devices > 1 and score < math.inf and not evaluator.exhausted:
        method(evaluator, start, np.random.default_rng(seed))
