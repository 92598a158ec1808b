"""Searches that move groups: hill climbing, iterated local search, annealing, and annealing of parts.

In comes an evaluator with a budget and a placement to begin with; better ones go back to it. The moves are compiled.
"""
