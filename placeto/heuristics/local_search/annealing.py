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
"""The same where single moves are so few that the critical ones are soon known; the other mix loses 0.1 to 0.4 %."""
FEW = 100
"""Single moves below which they are few."""
HOT = 0.15
"""Share of the proposals that are accepted though worse, at the beginning, at most."""
COLD = 0.01
"""Such a share at the end, and at the beginning for each simulation that a single move can have, up to `HOT`."""
PARTS = 8
"""Into how many parts a group is split, on the average: half as many are 0.9 % worse to 0.8 % better."""
MOST_PARTS = 1000
"""Parts of all groups together, at most."""
ON_GROUPS = 0.6
"""Share of the simulations that go to groups, before their parts: groups alone are 1 to 2.9 % worse."""
ENOUGH = 3.0
"""Groups are split if there are so many simulations for each move of one: level with six under a clock."""


def annealing(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """Annealing from the best cheap placement; most of the moves that it proposes are of critical groups.

    The fewer the simulations for the number of moves, the colder it begins.
    """
    moves = evaluator.groups.num_groups * (evaluator.problem.num_devices - 1)
    hot = min(HOT, max(COLD, COLD * evaluator.expected / moves))
    mix = MIX if moves >= FEW else MIX_OF_FEW
    LocalSearch(evaluator, start, mix, rng).run(hot, COLD)


def annealing_of_parts(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """Multilevel annealing: of groups, then of the parts they are split into; with few simulations of groups alone.

    The evaluator's groups are then parts of its groups before.
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
    """The parts that groups are split into: what multilevel annealing anneals."""
    count = min(PARTS * groups.num_groups, MOST_PARTS)
    return split_groups(problem, groups, max(groups.num_groups, count))


def anneal_within(evaluator: Evaluator, rng: np.random.Generator) -> None:
    """Anneal from the best placement of the evaluator's groups, if anything is left of the budget."""
    if not evaluator.exhausted:
        annealing(evaluator, evaluator.best_groups[0], rng)
