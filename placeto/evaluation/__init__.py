"""Placers compared fairly: the same problems, equal budgets, several seeds.

In come graphs, clusters and placers by name; out go rows, a table of ratios, and curves of makespan against budget.
"""
