"""Copies of a traced micro-batch, where a second one did the same as the first."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._mode_utils import no_dispatch

from placeto.capture.draws import DRAWN, RAN
from placeto.capture.labels import Label
from placeto.capture.lifetimes import HELD

LIKE = "like"
"""Key in a copy's ``meta``: the node that it is a copy of. The two differ in nothing but their labels."""


def repeat(graph: Graph, count: int, outputs: Sequence[Sequence[Any]]) -> list[list[Any]] | None:
    """Add copies of the second micro-batch to a graph until it has `count` micro-batches.

    The first two must be the same: they call the same ops in the same order, on values of the same layout. These values
    are made by corresponding calls, or both micro-batches are given them, or they are their parts of the batch. No node
    but the output may read what they make.

    Args:
        graph: the trace of micro-batches 0 and 1; its nodes have ``meta["val"]`` and ``meta["label"]``.
        count: the number of micro-batches that the graph is to have.
        outputs: the outputs of micro-batches 0 and 1, each a node or None.

    Returns:
        The outputs of each micro-batch from number 2 on; None, with nothing added, if the first two aren't the same.
    """
    first, second = ([node for node in graph.nodes if _number(node) == number] for number in (0, 1))
    pairs = _Pairs()
    if len(first) != len(second) or not all(map(pairs.add, first, second)):
        return None
    if not pairs.same(list(outputs[0]), list(outputs[1])):
        return None
    end = next(iter(reversed(graph.nodes)))
    own = {*first, *second, end}
    if any(user not in own for node in own for user in node.users):  # such as a buffer that keeps the last value
        return None
    made: list[list[Any]] = []
    for number in range(2, count):
        copies = {part: _part(graph, part, number) for part in pairs.parts}
        of = partial(_of, copies)
        with graph.inserting_before(end):
            for one, two in zip(first, second, strict=True):
                args, kwargs = map_arg(two.args, of), map_arg(two.kwargs, of)
                copies[two] = copy = graph.create_node(two.op, two.target, args, kwargs, two.name)
                before, after = one.meta["label"], two.meta["label"]
                call = before.call + number * (after.call - before.call)
                label = replace(after, micro_batch=number, call=call)
                copy.meta |= {"val": two.meta["val"], "label": label, LIKE: two, RAN: two.meta.get(RAN)}
        for node, copy in copies.items():
            if (until := node.meta.get(HELD)) in copies:
                copy.meta[HELD] = copies[until]
            if DRAWN in node.meta:
                copy.meta[DRAWN] = copies[node.meta[DRAWN]]
        made.append([copies.get(node, node) for node in outputs[1]])
    return made


def _of(copies: dict[Node, Node], node: Node) -> Node:
    return copies.get(node, node)


class _Pairs:
    """Nodes of the first micro-batch and those of the second that do the same."""

    def __init__(self) -> None:
        self.other: dict[Node, Node] = {}
        self.parts: set[Node] = set()  # the nodes that are the second's parts of the batch

    def add(self, one: Node, two: Node) -> bool:
        """Note that two nodes correspond, and return whether they do the same."""
        alike = one.op == two.op and one.target == two.target
        alike = alike and self.same(one.args, two.args) and self.same(one.kwargs, two.kwargs)
        before, after = (replace(node.meta["label"], micro_batch=0, call=0, node=None) for node in (one, two))
        self.other[one] = two
        return alike and before == after and _same_layout(one.meta["val"], two.meta["val"])

    def same(self, one: Any, two: Any) -> bool:
        """Whether an argument in the first micro-batch and one in the second are the same or correspond."""
        if isinstance(one, Node) and isinstance(two, Node):
            if one in self.other:
                return self.other[one] is two
            return one is two or self._parts_of_one(one, two) or _same_constant(one, two)
        if isinstance(one, list | tuple) and isinstance(two, list | tuple):
            return len(one) == len(two) and all(map(self.same, one, two))
        if isinstance(one, dict) and isinstance(two, dict):
            return one.keys() == two.keys() and all(self.same(one[key], two[key]) for key in one)
        return type(one) is type(two) and bool(one == two)

    def _parts_of_one(self, one: Node, two: Node) -> bool:
        if one.target is not operator.getitem or two.target is not operator.getitem:
            return False
        found = bool(one.args[0] is two.args[0] and one.args[1] == 0 and two.args[1] == 1)
        if found:
            self.parts.add(two)
        return found


def _number(node: Node) -> int:
    label: Label = node.meta.get("label", Label())
    return label.micro_batch


def _part(graph: Graph, part: Node, number: int) -> Node:
    """The node of another micro-batch's part of the same tensor, added to the graph if it has none."""
    whole = part.args[0]
    assert isinstance(whole, Node)
    for user in whole.users:
        if user.target is operator.getitem and user.args[1] == number:
            return user
    with graph.inserting_after(part):
        made = graph.call_function(operator.getitem, (whole, number))
    made.meta |= {"val": part.meta["val"], "label": part.meta["label"]}
    return made


def _same_constant(one: Node, two: Node) -> bool:
    """Whether two nodes are constants of the trace with the same values."""
    if one.op != "get_attr" or two.op != "get_attr":
        return False
    a, b = (getattr(node.graph.owning_module, str(node.target), None) for node in (one, two))
    if type(a) is not Tensor or type(b) is not Tensor or a.is_meta or b.is_meta:
        return False
    with no_dispatch():  # also where only shapes are traced, constants have values
        return a.dtype == b.dtype and torch.equal(a, b)


def _same_layout(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return bool(one.shape == two.shape and one.stride() == two.stride() and one.dtype == two.dtype)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(_same_layout, one, two))
    return type(one) is type(two)
