"""What is reached from some nodes of a graph: of a traced one, of autograd's, or of a graph of ops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from torch import Tensor
from torch.fx import Node

Item = TypeVar("Item")


def reached(roots: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> Collection[Item]:
    """The roots, and all that is reached from them, each once.

    Args:
        roots: where the search begins.
        following: what is reached from an item directly.
    """
    visited: dict[Item, None] = {}
    stack = list(roots)
    while stack:
        item = stack.pop()
        if item not in visited:
            visited[item] = None
            stack.extend(following(item))
    return visited


def needed_by(roots: Iterable[Node]) -> Collection[Node]:
    """The roots, and all nodes of a traced graph that they need, directly or not."""
    return reached(roots, lambda node: node.all_input_nodes)


def behind(loss: Tensor) -> Collection[Any]:
    """The nodes of autograd that the backward pass of a loss runs."""
    roots = [] if loss.grad_fn is None else [loss.grad_fn]
    return reached(roots, lambda node: [parent for parent, _ in node.next_functions if parent is not None])
