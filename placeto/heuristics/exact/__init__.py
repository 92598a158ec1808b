"""The optimum of small problems, by constraint programming (OR-tools).

Input: a problem. Output: a placement that is proven to be optimal, or the best one that was found within the budget.
"""
