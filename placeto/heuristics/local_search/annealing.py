"""Annealing of groups.

Legend: G groups, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.heuristics.local_search.local_search import LocalSearch
from placeto.simulator.evaluator import Evaluator

HOT = 0.15
"""Upper limit of the share of proposals that are accepted though worse, at the beginning."""
COLD = 0.01
"""Share of the proposals that are accepted though worse, at the end. At the beginning it is this number x the number of
simulations for each single move, but at least `COLD` and at most `HOT`. A single move gives one group another device.
"""


def annealing(evaluator: Evaluator, rng: np.random.Generator) -> None:
    """Annealing from the best placement of groups so far, which proposes all kinds of moves equally often.

    The fewer simulations there are for each single move, the fewer worse proposals are accepted at the beginning.
    """
    if evaluator.exhausted:
        return
    moves = evaluator.groups.num_groups * (evaluator.problem.num_devices - 1)
    hot = min(HOT, max(COLD, COLD * evaluator.expected / moves))
    LocalSearch(evaluator, evaluator.best_groups[0], rng).run(hot, COLD)
