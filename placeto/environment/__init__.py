"""The placement MDP (Markov decision process): what a policy observes, which moves it may make, and their rewards.

Input: problems with their ops in groups, each an `Instance`, and placements. Output: observations with named columns
(`observe`), and the states of batched episodes (`reset`, `step`). Addanki et al. 2019, section 3.
"""
