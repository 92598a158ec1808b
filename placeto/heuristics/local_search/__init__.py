"""Searches that move groups: hill climbing, iterated local search, annealing, and annealing of parts.

In comes an evaluator with a budget and a placement to begin with; better ones go back to it. The moves are compiled.
"""

from placeto.heuristics.local_search.annealing import annealing, annealing_of_parts
from placeto.heuristics.local_search.descents import climb, iterate

__all__ = ["annealing", "annealing_of_parts", "climb", "iterate"]
