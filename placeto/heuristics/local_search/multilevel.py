"""The search: V-cycles anneal groups, then parts of groups, and then groups that are made anew of these parts.

V-cycles of multilevel partitioners: Walshaw, "Multilevel refinement for combinatorial optimisation problems", 2004.

Legend: G groups, D devices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.joining import Coarsening
from placeto.problem.grouping import Groups, split_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.observer import at_work

CYCLES = 3
"""Number of V-cycles, which share the budget evenly. With two and with four, makespans are equal within the noise."""
SHARE = 0.5
"""Share of a V-cycle for groups, before their parts; and the largest share of what is left for one sweep."""
PARTS = 8
"""Mean number of parts that a group is split into: makespans with half as many are 0.9 % longer to 0.8 % shorter."""
MOST_PARTS = 1000
"""Upper limit of the number of parts of all groups together."""
Sweep = Callable[[Evaluator], None]
"""Tries moves of the evaluator's groups, from their best placement."""


def v_cycles(evaluator: Evaluator, rng: np.random.Generator, sweep: Sweep | None = None) -> None:
    """Multilevel annealing: of groups, then of their parts, then of groups that are made anew of these parts.

    There are `CYCLES` V-cycles. A V-cycle joins parts that the best placement has on one device, until there are as
    many groups as at first. It anneals these groups, and then all parts. With a `sweep`, there are a sweep over groups
    and one over parts before the V-cycles, and one before each annealing. Without it, the first V-cycle anneals the
    groups as they are. If no group can be split, all V-cycles anneal the parts alone. Afterwards the evaluator's groups
    are the parts.
    """
    problem, groups = evaluator.problem, evaluator.groups
    parts = parts_of(problem, groups)
    if sweep is not None:
        _sweep(evaluator, sweep)
        evaluator.regroup(parts)
        _sweep(evaluator, sweep)
    coarsening = Coarsening(problem, parts)
    for cycle in range(CYCLES):
        with evaluator.limited_to(1.0 / (CYCLES - cycle)):
            with evaluator.limited_to(SHARE):
                if evaluator.groups is parts:
                    evaluator.regroup(coarsening.groups_on_one_device(evaluator.best_groups[0], groups.num_groups))
                _improve(evaluator, rng, sweep)
            evaluator.regroup(parts)
            _improve(evaluator, rng, sweep)


def _improve(evaluator: Evaluator, rng: np.random.Generator, sweep: Sweep | None) -> None:
    """Sweep over the evaluator's groups, and then anneal them, from their best placement."""
    if sweep is not None:
        _sweep(evaluator, sweep)
    at_work("search")
    annealing(evaluator, rng)


def _sweep(evaluator: Evaluator, sweep: Sweep) -> None:
    if not evaluator.exhausted:
        with evaluator.limited_to(SHARE):
            sweep(evaluator)


def parts_of(problem: PlacementProblem, groups: Groups) -> Groups:
    """Split groups into the parts that V-cycles move; returns these as groups."""
    count = min(PARTS * groups.num_groups, MOST_PARTS)
    return split_groups(problem, groups, max(groups.num_groups, count))
