"""The nodes of a traced graph that some nodes need."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node


def needed_by(roots: Sequence[Node]) -> set[Node]:
    """The roots, and all nodes that they need, directly or not."""
    needed, stack = set(), list(roots)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    return needed
