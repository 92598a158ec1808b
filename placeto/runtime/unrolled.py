"""The trace of all micro-batches of a step, made from the trace of one: what runs once a step is placed.

The batch is split. The calls of each micro-batch are copies of those of the traced one, in the same order. What a step
writes to a buffer, such as a counter, the next micro-batch reads in place of the buffer. Losses and gradients are added
up as the graph says, and the outputs of an inference are joined. Copies of parameters that all micro-batches share are
made once. Each micro-batch writes its own statistics of batch norms.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from placeto.capture.trace import Capture
from placeto.capture.tracing.statistics import KEPT, updates_of

aten = torch.ops.aten


def unrolled(capture: Capture) -> Capture:
    """Return the capture with the trace of all micro-batches, and the nodes of it that each op of the graph stands for.

    A capture of one micro-batch, and one that is unrolled already, is returned as it is.
    """
    if not any(capture.split):
        return capture
    unrolling = _Unrolling(capture)
    trace = GraphModule(capture.traced, unrolling.graph)
    trace.meta |= capture.traced.meta
    return replace(capture, traced=trace, nodes=tuple(unrolling.nodes_of_ops()), split=())


class _Unrolling:
    """The trace of all micro-batches, and where the nodes of the trace of one are in it."""

    def __init__(self, capture: Capture) -> None:
        self.capture, self.graph, self.count = capture, Graph(), capture.step.count
        self.training = capture.graph.mode == "training"
        nodes = list(capture.traced.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        shared = zip(capture.nodes, capture.step.shared.tolist(), strict=False)
        self.once = {name for names, is_shared in shared if is_shared for name in names}
        self.copies: list[dict[Node, Node]] = [{} for _ in range(self.count)]  # of each node, in each micro-batch
        self.sums: dict[int, list[Node]] = defaultdict(list)  # output of a training step -> its sums so far
        whole = {node: self._input(node) for node in inputs}
        divided = [node for node, split in zip(inputs[len(capture.paths) :], capture.split, strict=True) if split]
        for node in divided:
            self._split(node, whole[node])
        outputs: Any = nodes[-1].args[0]
        updates = updates_of(capture.traced)
        handed_on = {node: value for node, value, kept in updates if kept is None and node not in divided}
        totals: dict[Node, list[int]] = defaultdict(list)  # node -> the outputs of a training step that it is
        for place, node in enumerate(outputs if self.training else ()):
            totals[node].append(place)
        for number in range(self.count):
            if number:  # buffers are as the micro-batch before has left them
                before = self.copies[number - 1]
                self.copies[number] |= {node: before[value] for node, value in handed_on.items()}
            for node in nodes:
                if node.op in ("call_function", "get_attr") and node.target is not aten.copy_.default:
                    self._copy(node, number)
                    for place in totals[node]:
                        self._add(place, node, number)
        self.ends = [self._end(place, node) for place, node in enumerate(outputs)]
        values: list[Any] = [
            (node, copies[new], kept) for copies in self.copies for node, new, kept in updates if kept is not None
        ]
        values += [(node, self.copies[-1][value], None) for node, value in handed_on.items()]
        values += [(node, self._cat(new), None) for node, new, _ in updates if node in divided]
        for node, new, kept in values:
            self._call(aten.copy_.default, (whole[node], new), whole[node].meta["val"]).meta[KEPT] = kept
        self.graph.output(self.ends)

    def nodes_of_ops(self) -> list[tuple[str, ...]]:
        """The names of the nodes that each op of the graph stands for."""
        node_of = {node.name: node for node in self.capture.traced.graph.nodes}
        size, step, by_op = len(self.capture.nodes), self.capture.step, []
        for row, number in zip(*(values.tolist() for values in step.order), strict=True):
            if row < size:
                nodes = [self.copies[number][node_of[name]] for name in self.capture.nodes[row]]
            else:
                combined = step.combined[(row - size) // 2]
                is_sum = (row - size) % 2 == 0 and combined.after is not None
                nodes = [self.sums[combined.output][number] if is_sum else self.ends[combined.output]]
            by_op.append(tuple(node.name for node in nodes))
        return by_op

    def _input(self, node: Node) -> Node:
        """Add an input, which all micro-batches are given as it is unless it is split."""
        placeholder = self.graph.placeholder(node.name)
        placeholder.meta |= node.meta
        for copies in self.copies:
            copies[node] = placeholder
        return placeholder

    def _split(self, node: Node, whole: Node) -> None:
        layout = node.meta["val"]
        whole.meta["val"] = torch.cat([layout] * self.count)
        parts = self._call(aten.split.Tensor, (whole, len(layout)), [layout] * self.count)
        for number, copies in enumerate(self.copies):
            copies[node] = self._call(operator.getitem, (parts, number), layout)

    def _copy(self, node: Node, number: int) -> None:
        copies = self.copies[number]
        if number and (node.op == "get_attr" or node.name in self.once):
            copies[node] = self.copies[0][node]
        else:
            copies[node] = self.graph.node_copy(node, copies.__getitem__)

    def _add(self, place: int, node: Node, number: int) -> None:
        """Add what a micro-batch contributes to an output to the sum of those before."""
        total = self.copies[number][node]
        if number:
            total = self._call(aten.add.Tensor, (self.sums[place][-1], total), node.meta["val"])
        self.sums[place].append(total)

    def _end(self, place: int, node: Any) -> Any:
        """The output of the whole step in place of that of a micro-batch."""
        if node is None:
            return None
        if self.training:
            whole = self.sums[place][-1]
            return self._call(aten.alias.default, (whole,), node.meta["val"]) if place else whole
        is_joined = any(each.output == place for each in self.capture.step.combined)
        return self._cat(node) if is_joined else self.copies[0][node]

    def _cat(self, node: Node) -> Node:
        parts = [copies[node] for copies in self.copies]
        return self._call(aten.cat.default, (parts,), torch.cat([node.meta["val"]] * self.count))

    def _call(self, target: Any, arguments: Sequence[Any], layout: Any) -> Node:
        call = self.graph.call_function(target, tuple(arguments))
        call.meta["val"] = layout
        return call
