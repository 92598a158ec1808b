"""Grouping: which ops stay together, so that mostly 30 to 200 decisions remain of thousands of ops.

Input: a problem. Output: `Groups`, which can be joined, split and cut, and their flat arrays for kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeto.plumbing.lazily import lazily

if TYPE_CHECKING:
    from placeto.problem.grouping.grouping import (
        MAX_GROUPS,
        Groups,
        cut_groups,
        expand,
        group_ops,
        join_groups,
        split_groups,
    )

__all__ = ["MAX_GROUPS", "Groups", "cut_groups", "expand", "group_ops", "join_groups", "split_groups"]

__getattr__, __dir__ = lazily(globals(), {"grouping": __all__})  # it loads numba
