"""Searches that move groups: hill climbing, iterated local search, annealing, and annealing of parts.

Input: an `Evaluator` with a budget, and a placement to begin with. Output: none; the evaluator
keeps the best placement. The loop over moves is compiled.
"""

from placeto.heuristics.local_search.annealing import annealing, annealing_of_parts
from placeto.heuristics.local_search.descents import climb, iterate

__all__ = ["annealing", "annealing_of_parts", "climb", "iterate"]
