"""Running statistics of batch norms.

A batch norm in training changes its statistics in place, though its schema doesn't say so, and no edge of the graph.
Calls of one norm, such as those of several micro-batches, may run on several devices, in any order. So where a trace is
run, each call returns what the statistics would be if it alone changed them. They are put together at the end.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten
NORM = aten.native_batch_norm.default
FUNCTIONAL = aten._native_batch_norm_legit_functional.default
STATISTICS, TRAINING, _MOMENTUM = slice(3, 5), 5, 6  # places among the arguments of both
KEPT = "kept"
"""Key in the ``meta`` of a copy that writes a statistic: the share of its old value that is in the new one."""
_TRAINING: dict[Any, int] = {NORM: TRAINING, FUNCTIONAL: TRAINING, aten.native_batch_norm_backward.default: 7}


def statistics(node: Node) -> list[Node]:
    """The running statistics that a batch norm in training, or its backward pass, is given; none for other nodes."""
    training = _TRAINING.get(node.target)
    if training is None or node.args[training] is not True:
        return []
    others = (*node.args[: STATISTICS.start], *node.args[STATISTICS.stop :])
    return [stat for stat in node.args[STATISTICS] if isinstance(stat, Node) and stat not in others]


def as_values(traced: GraphModule) -> None:
    """Change a trace in place, so that batch norms return new statistics, and a copy at its end writes each of them."""
    graph, end = traced.graph, traced.graph.output_node()
    for norm in graph.find_nodes(op="call_function", target=NORM):
        if given := statistics(norm):
            norm.target = FUNCTIONAL
            norm.meta["val"] = [*norm.meta["val"], *(statistic.meta["val"] for statistic in norm.args[STATISTICS])]
            for place, statistic in enumerate(norm.args[STATISTICS], STATISTICS.start):
                if statistic not in given:
                    continue
                with graph.inserting_after(norm):
                    new = graph.call_function(operator.getitem, (norm, place))
                with graph.inserting_before(end):
                    copy = graph.call_function(aten.copy_.default, (statistic, new))
                new.meta["val"] = copy.meta["val"] = statistic.meta["val"]
                copy.meta[KEPT] = 1.0 - norm.args[_MOMENTUM]


class Update(NamedTuple):
    """What a step writes to one of its inputs at its end."""

    input: Node
    value: Node
    kept: float | None  # of a statistic, the share of the value before the step that is in `value`


def updates_of(traced: GraphModule) -> list[Update]:
    """What a trace writes to its inputs, in this order; if it is run, each call of a norm writes its statistics."""
    copies = traced.graph.find_nodes(op="call_function", target=aten.copy_.default)
    return [Update(copy.all_input_nodes[0], copy.all_input_nodes[-1], copy.meta.get(KEPT)) for copy in copies]
