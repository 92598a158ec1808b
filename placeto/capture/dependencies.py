"""What a call of a traced graph needs."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node


def needed_by(roots: Sequence[Node]) -> set[Node]:
    """Nodes, and all that they need, directly or not."""
    needed, stack = set(), list(roots)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(node.all_input_nodes)
    return needed
