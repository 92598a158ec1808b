"""Grouping: which ops stay together, so that thousands of ops become 30 to 300 decisions.

Input: a problem. Output: `Groups`, which can be joined, split and cut, and their flat arrays for kernels.
"""

from placeto.problem.grouping.grouping import Groups, cut_groups, expand, group_ops, join_groups, split_groups

__all__ = ["Groups", "cut_groups", "expand", "group_ops", "join_groups", "split_groups"]
