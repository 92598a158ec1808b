"""Searches that move groups: hill climbing, iterated local search, annealing, and V-cycles.

Input: an `Evaluator` with a budget, and a placement to begin with. Output: none; the evaluator
keeps the best placement. The loop over moves is compiled.
"""

from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.descents import climb, iterate
from placeto.heuristics.local_search.multilevel import v_cycles

__all__ = ["annealing", "climb", "iterate", "v_cycles"]
