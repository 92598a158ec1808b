"""Policies that place a whole graph without a simulation: those of three papers, a constructive one, and a control.

Input: a graph as units with features (`inputs`). Output: sampled placements with their log-probabilities. The table of
all policies is `placeto.policies.POLICIES`.
"""

from placeto.policies.one_shot.one_shot_policy import OneShotPolicy, Sample

__all__ = ["OneShotPolicy", "Sample"]
