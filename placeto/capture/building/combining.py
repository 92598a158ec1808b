"""What the micro-batches of a step give each other: sums, joined outputs, and buffers that each of them updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from placeto.capture.building.op_builder import MadeBy, OpBuilder
from placeto.capture.costing.node_costs import tensor_bytes
from placeto.capture.tracing.node_labels import Label
from placeto.problem.step.micro_batches import NO_CALL, Carried, Combined

aten = torch.ops.aten


def sums_of(
    builder: OpBuilder,
    outputs: Sequence[Node | None],
    weights: Sequence[Node],
    latest: Mapping[Node, int],
    calls: Mapping[str, int],
) -> list[Combined]:
    """What is added up over micro-batches: the loss, and the gradients of parameters, in the order of the additions.

    Args:
        builder: the ops of a micro-batch.
        outputs: the loss, and for each trained parameter its gradient, None where there is none.
        weights: the trained parameters.
        latest: node -> the last op that has run once the node has run, in the order of the trace.
        calls: how often each module is called in a micro-batch.
    """
    place = {node: number for number, node in enumerate(latest)}
    nodes = [(node, output) for output, node in enumerate(outputs) if node is not None]
    combined = []
    # of parameters that have one gradient, the last one comes first
    for node, output in sorted(nodes, key=lambda pair: (place[pair[0]], -pair[1])):
        value, weight = builder.values.get(node), builder.values[weights[output - 1]] if output else None
        if isinstance(value, MadeBy) and (isinstance(weight, MadeBy) or not output):
            label: Label = node.meta["label"]
            label = Label(label.module, label.call, backward=output > 0)
            layout, name = node.meta["val"], builder.records[weight.op]["name"] if weight else ""
            record = _record(builder, aten.add.Tensor, label, [layout, layout], layout)
            source, after = (value.op, value.output), latest[node]
            combined.append(Combined(output, source, record, after, name, label.call, calls_of(label, calls)))
    return combined


def joins_of(builder: OpBuilder, outputs: Sequence[Node], joined: Sequence[bool], count: int) -> list[Combined]:
    """What is joined over so many micro-batches: those outputs of an inference for which `joined` is true."""
    combined = []
    for output, node in compress(enumerate(outputs), joined):
        value, layouts = builder.values.get(node), [node.meta["val"]] * count
        record = _record(builder, aten.cat.default, Label(), layouts, torch.cat(layouts))
        combined.append(Combined(output, (value.op, value.output) if isinstance(value, MadeBy) else None, record))
    return combined


def carried_by(builder: OpBuilder, written: Mapping[Node, Node]) -> list[Carried]:
    """The ops that read a buffer which the micro-batch before has written.

    Args:
        builder: the ops of a micro-batch.
        written: buffer -> the value that is written to it.
    """
    values = {id(builder.values.get(node)): builder.values.get(value) for node, value in written.items()}
    reads = [(op, place, values.get(id(buffer))) for op, place, buffer in builder.read]
    return [Carried(op, place, (tensor.op, tensor.output)) for op, place, tensor in reads if isinstance(tensor, MadeBy)]


def calls_of(label: Label, calls: Mapping[str, int]) -> int:
    """How often a micro-batch calls the module whose call runs an op: a loss is called once."""
    return 0 if label.call == NO_CALL else calls.get(label.module, 1)


def _record(builder: OpBuilder, target: Any, label: Label, layouts: Sequence[Tensor], result: Tensor) -> dict[str, Any]:
    """The record, without name and inputs, of an op that makes one tensor of several of these layouts."""
    graph = Graph()
    parts = [graph.placeholder("part") for _ in layouts]
    for part, layout in zip(parts, layouts, strict=True):
        part.meta["val"] = layout
    node = graph.call_function(target, tuple(parts) if target is aten.add.Tensor else (parts,))
    node.meta["val"] = result
    record = {"type": str(target.overloadpacket), "module": label.module, "outputs": [tensor_bytes(result)]}
    return record | {"pass": label.part} | builder.cost(node)
