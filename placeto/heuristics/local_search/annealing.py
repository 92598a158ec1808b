"""Annealing of groups, and of the parts that they are split into.

Legend: N ops, G groups, D devices, M kinds of moves.
"""

from __future__ import annotations

import numpy as np

from placeto.heuristics.local_search.local_search import LocalSearch
from placeto.problem.grouping import Groups, split_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.observer import at_work

MIX = {
    "estimated": 0.3,
    "critical": 0.3,
    "random": 0.15,
    "swap": 0.1,
    "set": 0.04,
    "part": 0.05,
    "exchange": 0.06,
    "block": 0.03,
}
"""Probability of each kind of move; see `MOVES`."""
MIX_OF_FEW = {
    "estimated": 0.2,
    "critical": 0.15,
    "random": 0.3,
    "swap": 0.1,
    "set": 0.1,
    "part": 0.1,
    "exchange": 0.03,
    "block": 0.02,
}
"""Probability of each kind of move if there are fewer than `FEW` single moves. Then all moves of critical groups are
soon tried; makespans with `MIX` are 0.1 to 0.4 % longer."""
FEW = 100
"""`MIX` is used from this number of single moves on. A single move gives one group another device."""
HOT = 0.15
"""Upper limit of the share of proposals that are accepted though worse, at the beginning."""
COLD = 0.01
"""Share of the proposals that are accepted though worse, at the end. At the beginning it is this number x the number of
simulations for each single move, but at least `COLD` and at most `HOT`."""
PARTS = 8
"""Mean number of parts that a group is split into: makespans with half as many are 0.9 % longer to 0.8 % shorter."""
MOST_PARTS = 1000
"""Upper limit of the number of parts of all groups together."""
ON_GROUPS = 0.6
"""Share of the budget for annealing groups, before their parts: makespans with groups alone are 1 to 2.9 % longer."""
ENOUGH = 3.0
"""Groups are split if the budget has at least this number of simulations for each single move. With a budget in
seconds, results with six are level."""


def annealing(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """Annealing from the best placement of the constructive placers; it mostly proposes moves of critical groups.

    The fewer simulations there are for each single move, the fewer worse proposals are accepted at the beginning.
    """
    moves = evaluator.groups.num_groups * (evaluator.problem.num_devices - 1)
    hot = min(HOT, max(COLD, COLD * evaluator.expected / moves))
    mix = MIX if moves >= FEW else MIX_OF_FEW
    LocalSearch(evaluator, start, mix, rng).run(hot, COLD)


def annealing_of_parts(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """Multilevel annealing: of groups, then of the parts that they are split into; with few simulations, groups alone.

    Afterwards the evaluator's groups are the parts, if groups were split.
    """
    problem, groups = evaluator.problem, evaluator.groups
    enough = evaluator.expected >= ENOUGH * groups.num_groups * (problem.num_devices - 1)
    parts = parts_of(problem, groups) if enough else groups
    if parts.num_groups == groups.num_groups:
        annealing(evaluator, start, rng)
        return
    with evaluator.limited_to(ON_GROUPS):
        annealing(evaluator, start, rng)
    evaluator.regroup(parts)
    at_work("search of parts")
    anneal_within(evaluator, rng)


def parts_of(problem: PlacementProblem, groups: Groups) -> Groups:
    """Split groups into the parts that multilevel annealing moves; returns these as groups."""
    count = min(PARTS * groups.num_groups, MOST_PARTS)
    return split_groups(problem, groups, max(groups.num_groups, count))


def anneal_within(evaluator: Evaluator, rng: np.random.Generator) -> None:
    """Anneal from the best placement that keeps the evaluator's groups together, if the budget isn't spent."""
    if not evaluator.exhausted:
        annealing(evaluator, evaluator.best_groups[0], rng)
