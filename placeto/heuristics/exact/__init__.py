"""The optimum of small problems, by constraint programming (OR-tools).

Input: a problem. Output: a placement that is proven to be optimal, or the best one that was found within the budget.
"""

from placeto.heuristics.exact.exact_placer import solve, try_exact

__all__ = ["solve", "try_exact"]
