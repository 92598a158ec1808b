"""The placement MDP: what a policy sees, what it may do, and what that is worth.

In come problems with their ops in groups, as an `Instance`, and placements; out go observations with named columns
(`observe`) and the states of batched episodes (`reset`, `step`). Addanki et al. 2019, section 3.
"""
