"""Policies that place a whole graph at once: ColocRL's sequence to sequence, grouper and placer, GDP; and a control.

Input: a graph as units with features (`inputs`). Output: sampled placements with their log-probabilities. The table of
all policies is `placeto.policies.POLICIES`.
"""

from placeto.policies.one_shot.one_shot_policy import OneShotPolicy, Sample

__all__ = ["OneShotPolicy", "Sample"]
