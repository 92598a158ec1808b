"""Random numbers of checkpoints: what a checkpoint recomputes has the same random numbers as in the forward pass.

For this, torch resets the generator before it recomputes. A placed step can't do so, as other ops draw numbers in
between. So it keeps the numbers of the forward pass, and an op that would draw them again reads them instead. The graph
has both ops.

If several cores draw numbers, each has a generator of its own. So the ops that draw take a generator as an argument.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from placeto.capture.tracing.checkpoints import Function, Steps, checkpointing_by
from placeto.capture.tracing.layouts import ON_COPY
from placeto.capture.tracing.lifetimes import SOURCE
from placeto.capture.tracing.statistics import as_values

DRAWN = "drawn"
"""Key in a node's ``meta``: the node of the forward pass that draws the same numbers."""
RAN = "ran"
"""Key in a node's ``meta``: the op that the module ran, which may change a tensor in place where the node doesn't."""
aten = torch.ops.aten


class Draws:
    """Notes, while a module is traced, which nodes draw numbers in a checkpoint, and which draw them again."""

    def __init__(self) -> None:
        self._noting: list[list[Node]] = []  # nodes that draw, of each checkpoint that is in its first pass
        self._again: list[Iterator[Node]] = []  # those not repeated yet, of each checkpoint that is recomputed

    def ran(self, node: Node) -> None:
        """Note a node that draws numbers and, if a checkpoint recomputes, which node drew the same ones before."""
        if not draws(node):
            return
        left = self._again[-1] if self._again else iter(())
        if (first := next((drawn_before for drawn_before in left if _alike(drawn_before, node)), None)) is not None:
            node.meta[DRAWN] = first
        for noted in self._noting:
            noted.append(node.meta.get(DRAWN, node))

    def following(
        self, place: Callable[[], Callable[[], AbstractContextManager[None]]]
    ) -> AbstractContextManager[None]:
        """A context in which the nodes that draw in checkpoints are noted, also when a checkpoint recomputes.

        Args:
            place: called when a checkpoint is made; returns a function that makes the context to recompute it in.
        """

        def steps_with_notes(function: Function, preserve: bool, steps: Steps) -> Generator[None, None, None]:
            noted: list[Node] = []
            recomputing = place()

            def again(*args: Any, **named: Any) -> Any:
                with recomputing(), self._reading(noted) if preserve else nullcontext():
                    return function(*args, **named)

            for _ in steps(again):  # it yields once, for the first pass
                self._noting.append(noted)
                try:
                    yield
                finally:
                    self._noting = [nodes for nodes in self._noting if nodes is not noted]

        return checkpointing_by(steps_with_notes)

    @contextmanager
    def _reading(self, noted: list[Node]) -> Iterator[None]:
        self._again.append(iter(noted))
        try:
            yield
        finally:
            self._again.pop()


def draws(node: Node) -> bool:
    """Whether a node's op draws random numbers, and can take a generator for it."""
    return of_generator(node.target) is not None


@cache
def of_generator(op: Any) -> Any:
    """The overload of an op that takes a generator; None if the op draws no random numbers, or has no such overload."""
    if torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ()):
        return None
    wanted = [argument for argument in _arguments(op) if argument[0] != "generator"]
    for name in op.overloadpacket.overloads():
        overload = getattr(op.overloadpacket, name)
        arguments = _arguments(overload)
        rest = [argument for argument in arguments if argument[0] != "generator"]
        if rest == wanted and len(rest) < len(arguments):
            return overload
    return None


def _arguments(op: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in op._schema.arguments]


def carry_draws(retraced: GraphModule) -> None:
    """Copy what `DRAWN` says to the nodes of a trace from the nodes that they were made for (`SOURCE`)."""
    first: dict[Node, Node] = {}  # node of the other trace -> the first node that was made for it
    for node in retraced.graph.nodes:
        source = node.meta.get(SOURCE)
        if source is None or not draws(node):
            continue
        first.setdefault(source, node)
        if (drawn := first.get(source.meta.get(DRAWN))) is not None:
            node.meta[DRAWN] = drawn


def to_be_run(traced: GraphModule) -> None:
    """Change a trace in place, so that it can be run with several generators.

    Nodes that would draw numbers again read them, and the other nodes that draw take a generator. A dropout's mask is
    drawn in the order in which its elements lie in memory, as in the module. `aten.bernoulli`, which stands for
    `bernoulli_` in a graph without in-place ops, would draw that of a transposed tensor in another order. So
    `bernoulli_` is put back where no other node reads the tensor that it fills. Other ops that would lay out their
    result in another way than the module's are run in place, on a copy. Batch norms return their statistics.
    """
    as_values(traced)
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
        elif node.meta.get(ON_COPY):
            with traced.graph.inserting_before(node):
                copy = traced.graph.call_function(aten.clone.default, node.args[:1])
            copy.meta["val"] = node.args[0].meta["val"]
            node.target, node.args = node.meta[RAN], (copy, *node.args[1:])


def _fills(node: Node) -> bool:
    """Whether a node stands for a `bernoulli_` that filled a new tensor with random bits, and is its only reader."""
    if node.target is not aten.bernoulli.p or node.meta[RAN] is not aten.bernoulli_.float:
        return False
    (filled,) = node.all_input_nodes
    return filled.target is aten.empty_like.default and len(filled.users) == 1


def _alike(first: Node, second: Node) -> bool:
    """Whether two nodes are the same op of the same module, for tensors of the same shape."""
    same = first.target is second.target and first.meta["label"].module == second.meta["label"].module
    return same and _shapes(first) == _shapes(second)


def _shapes(node: Node) -> list[torch.Size]:
    return [part.shape for part in tree_leaves(node.meta["val"]) if isinstance(part, Tensor)]
