"""Random numbers of checkpoints: what is computed again has the numbers of the forward pass, as torch makes sure.

torch sets the generator back before it computes again. A placed step can't, as other ops draw numbers in between. So
it keeps the numbers of the forward pass: where they would be drawn again, it reads them. The graph has both ops.

Where several cores draw numbers, each has a generator of its own, so that ops take it as an argument.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
import torch.utils.checkpoint as checkpoints
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from placeto.capture.checkpoints import checkpointing_by
from placeto.capture.lifetimes import SOURCE

DRAWN = "drawn"
"""Under this key of a node's ``meta`` stands the node of the forward pass that draws the same numbers."""
RAN = "ran"
"""Under this key of a node's ``meta`` stands the op that the module ran, which may change a tensor in place."""
aten = torch.ops.aten


class Draws:
    """Knows, while a module is traced, which numbers are drawn again."""

    def __init__(self) -> None:
        self._noting: list[list[Node]] = []  # of the checkpoints that are being computed for the first time
        self._again: list[Iterator[Node]] = []  # of those that are computed again

    def ran(self, node: Node) -> None:
        """Note an op that draws numbers."""
        if not draws(node):
            return
        left = self._again[-1] if self._again else iter(())
        if (first := next((one for one in left if _alike(one, node)), None)) is not None:
            node.meta[DRAWN] = first
        for noted in self._noting:
            noted.append(node.meta.get(DRAWN, node))

    def following(
        self, place: Callable[[], Callable[[], AbstractContextManager[None]]]
    ) -> AbstractContextManager[None]:
        """Checkpoints that are made while this is open tell what they draw, and what they draw again.

        Args:
            place: called where a checkpoint is made; gives what makes the contexts to compute it again in.
        """
        original = checkpoints._checkpoint_without_reentrant_generator

        def made(
            function: Callable[..., Any], preserve: bool = True, *args: Any, **named: Any
        ) -> Generator[None, None, None]:
            noted: list[Node] = []
            there = place()

            def again(*args: Any, **named: Any) -> Any:
                with there(), self._reading(noted) if preserve else nullcontext():
                    return function(*args, **named)

            steps = original(again, preserve, *args, **named)
            for _ in steps:  # it yields once, for the first pass
                self._noting.append(noted)
                try:
                    yield
                finally:
                    self._noting = [other for other in self._noting if other is not noted]

        return checkpointing_by(made)

    @contextmanager
    def _reading(self, noted: list[Node]) -> Iterator[None]:
        self._again.append(iter(noted))
        try:
            yield
        finally:
            self._again.pop()


def draws(node: Node) -> bool:
    """Whether a node's op draws random numbers of a generator."""
    return of_generator(node.target) is not None


@cache
def of_generator(op: Any) -> Any:
    """The overload of an op that is given the generator of its random numbers; None if it draws none."""
    if torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ()):
        return None
    wanted = [argument for argument in _arguments(op) if argument[0] != "generator"]
    for name in op.overloadpacket.overloads():
        found = getattr(op.overloadpacket, name)
        arguments = _arguments(found)
        rest = [argument for argument in arguments if argument[0] != "generator"]
        if rest == wanted and len(rest) < len(arguments):
            return found
    return None


def _arguments(op: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in op._schema.arguments]


def carry_draws(made: GraphModule) -> None:
    """Give the nodes of a trace what is noted of those that they were made for."""
    first: dict[Node, Node] = {}  # node -> the one that draws in its place
    for node in made.graph.nodes:
        source = node.meta.get(SOURCE)
        if source is None or not draws(node):
            continue
        first.setdefault(source, node)
        if (drawn := first.get(source.meta.get(DRAWN))) is not None:
            node.meta[DRAWN] = drawn


def to_be_run(traced: GraphModule) -> None:
    """Let nodes that would draw numbers again read them, and others take a generator.

    Masks of dropout are drawn in the order in which tensors lie in memory, as in the module: `aten.bernoulli`, which
    stands for `bernoulli_` in a graph that changes nothing in place, draws those of transposed tensors in another.
    """
    for node in traced.graph.nodes:
        first = node.meta.get(DRAWN)
        if node.target is operator.getitem and DRAWN in node.args[0].meta:
            users = node.args[0].meta[DRAWN].users
            first = next(user for user in users if user.target is operator.getitem and user.args[1] == node.args[1])
        if first is not None and isinstance(node.meta["val"], Tensor):
            node.target, node.args, node.kwargs = aten.alias.default, (first,), {}
        elif _fills(node):
            node.target = aten.bernoulli_.float
        elif node.op == "call_function" and (op := of_generator(node.target)) not in (None, node.target):
            node.target, node.kwargs = op, {"generator": None} | node.kwargs


def _fills(node: Node) -> bool:
    """Whether a node stands for one that filled a tensor with random bits, and nobody else reads that tensor."""
    if node.target is not aten.bernoulli.p or node.meta[RAN] is not aten.bernoulli_.float:
        return False
    (filled,) = node.all_input_nodes
    return filled.target is aten.empty_like.default and len(filled.users) == 1


def _alike(one: Node, other: Node) -> bool:
    """Whether two nodes are the same op of the same module, for tensors of the same shape."""
    same = one.target is other.target and one.meta["label"].module == other.meta["label"].module
    return same and _shapes(one) == _shapes(other)


def _shapes(node: Node) -> list[torch.Size]:
    return [part.shape for part in tree_leaves(node.meta["val"]) if isinstance(part, Tensor)]
