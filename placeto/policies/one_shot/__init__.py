"""Policies that place a whole graph at once: ColocRL's sequence to sequence, grouper and placer, GDP; and a control.

In comes a graph as units with features (`inputs`); out go sampled placements with their log-probabilities. The
registry is `placeto.policies.POLICIES`.
"""
