"""From a traced `torch.fx` graph to a `Step`: which nodes are ops, what they cost, what they are called."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from placeto.capture.building.combining import calls_of, carried_by, joins_of, sums_of
from placeto.capture.building.idle import homes
from placeto.capture.building.op_builder import BufferValue, FilledValue, MadeBy, OpBuilder, ParameterValue, is_in_place
from placeto.capture.building.waiting import hold_back
from placeto.capture.costing.node_costs import CONSTANT_LIKE, dtype, nodes_read, packet_of, tensor_bytes
from placeto.capture.costing.signatures import signature
from placeto.capture.costing.written_attention import written_attention
from placeto.capture.tracing.dependencies import reached
from placeto.capture.tracing.lifetimes import HELD, KEPT, hold
from placeto.capture.tracing.node_labels import Label
from placeto.capture.tracing.statistics import updates_of
from placeto.problem.graph import ComputationGraph
from placeto.problem.step.micro_batches import Step, title

aten = torch.ops.aten
# ops that move no data, though their schema doesn't say that they are views
_ALIASES = {aten._unsafe_view, aten.unsafe_split, aten.unsafe_split_with_sizes, aten.unsafe_chunk, aten.lift_fresh}
_WAIT = "_c10d_functional.wait_tensor"  # the op before it, a collective, takes the time


def step_of(
    traced: GraphModule,
    parameters: Sequence[str],
    trained: Sequence[str],
    buffers: Sequence[str],
    name: str,
    mode: str,
    tf32: bool,
    micro_batches: int,
    calls: Mapping[str, int],
    joined: Sequence[bool],
) -> tuple[Step, tuple[tuple[str, ...], ...]]:
    """Make the step of the ops that the outputs of a traced graph depend on.

    Parameters and buffers that no op reads are ops too, or their bytes are counted with one.

    Args:
        traced: one micro-batch, functional; the first placeholders are the parameters, then the buffers; every node has
            ``meta["val"]`` (tensors of its layout) and ``meta["label"]``.
        parameters: paths of the parameters.
        trained: paths of the parameters whose gradients (None where there is none) follow the loss in the outputs; more
            outputs may follow.
        buffers: paths of the buffers.
        name: the name of the graph.
        mode: "training" or "inference".
        tf32: whether matrix products and convolutions of float32 compute in TF32.
        micro_batches: the number of micro-batches of the step.
        calls: how often each module is called in a micro-batch.
        joined: whether each output is joined with those of the other micro-batches.

    Returns:
        The step; and for each op, the names of the traced nodes that it stands for. A node belongs to one op at most:
        to its own, or, if it moves no data, to the op whose tensor it shows.

    Raises:
        GraphError: no op is left.
    """
    written = {each.input: each.value for each in updates_of(traced) if each.input.meta["val"].numel() > 1}
    left_out = _left_out(traced, written.values())
    builder = OpBuilder(tf32, written_attention(traced))
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, path in zip(placeholders, parameters, strict=False):
        builder.values[node] = ParameterValue(path, tensor_bytes(node.meta["val"]), [node])
    for node, path in zip(placeholders[len(parameters) :], buffers, strict=False):
        builder.values[node] = BufferValue(path, tensor_bytes(node.meta["val"]))
    latest: dict[Node, int] = {}  # node -> the last op that has run once the node has run
    for node in traced.graph.nodes:
        if node.op == "call_function" and node not in left_out:
            builder.values[node] = _visit(builder, node)
        latest[node] = len(builder.records) - 1
    outputs, trained_names = _outputs(traced), list[str]()
    if mode == "training":
        nodes = dict(zip(parameters, placeholders, strict=False))
        weights, outputs = [nodes[path] for path in trained], outputs[: 1 + len(trained)]
        trained_names = _trained(builder, weights, outputs[1:])
        combined = sums_of(builder, outputs, weights, latest, calls)
        loss = builder.values.get(outputs[0])
        hold_back(builder.records, builder.labels, builder.random, loss.op if isinstance(loss, MadeBy) else None)
    else:
        combined = joins_of(builder, outputs, joined, micro_batches)
    until = _held(builder, latest, outputs, mode == "training")
    hold(builder.records, until, [label.node for label in builder.labels], builder.rests)
    _add_idle(builder, placeholders)
    leaders = [builder.together[op] for op in range(len(builder.records))]
    sizes = Counter(leaders)
    names = [record["name"] for record in builder.records]
    for leader, record in zip(leaders, builder.records, strict=True):
        record |= {key: [(names[op], output) for op, output in record.get(key, ())] for key in ("inputs", "held")}
        if sizes[leader] > 1:
            record["colocation"] = str(leader)
    graph = ComputationGraph.from_ops(name, builder.records, mode)
    step = Step(
        graph,
        micro_batches,
        tuple(combined),
        tuple(carried_by(builder, written)),
        tuple(trained_names),
        call=np.array([label.call for label in builder.labels]),
        calls=np.array([calls_of(label, calls) for label in builder.labels]),
        repeated=np.array(builder.repeated),
    )
    return step, tuple(map(tuple, builder.nodes))


def _left_out(traced: GraphModule, written: Iterable[Node]) -> set[Node]:
    """Return the nodes that are no ops: copies into buffers at the end, and what only counters read.

    Counters are buffers of one number. Views cost nothing, so that those that nobody reads are left out. What else
    nobody reads, such as the output of a second head, is computed and held by PyTorch, so that it is an op.
    """
    copies = traced.graph.find_nodes(op="call_function", target=aten.copy_.default)
    read = reached([*traced.graph.find_nodes(op="output"), *written], nodes_read)
    counted = reached([copy.all_input_nodes[-1] for copy in copies], nodes_read)
    ends = [node for node in traced.graph.nodes if not node.users and node.op == "call_function"]
    unread = reached([node for node in ends if node not in copies and not is_view(node.target)], nodes_read)
    return {*copies, *counted, *(node for node in ends if is_view(node.target))} - {*read, *unread}


def _outputs(traced: GraphModule) -> Sequence[Any]:
    return next(node for node in traced.graph.nodes if node.op == "output").args[0]


def _held(
    builder: OpBuilder, latest: dict[Any, int], outputs: Sequence[Any], training: bool
) -> dict[tuple[int, int], int]:
    """Tensor, as op and output -> the last op that ran before it was freed; for tensors that aren't resident.

    If it never is, the number of ops stands in place of an op. The loss takes a few bytes, so that only the rest of its
    storage is held.
    """
    last_ops: dict[tuple[int, int], int] = {}
    for node, value in builder.values.items():
        last_node = node.meta.get(HELD)
        last_op = len(builder.records) if last_node == KEPT else latest.get(last_node)
        value = value.used if isinstance(value, FilledValue) else value
        if last_op is not None and isinstance(value, MadeBy) and not builder.is_resident(value):
            key = value.op, value.output
            last_ops[key] = max(last_ops.get(key, last_op), last_op)
    last_ops |= {rest: last_ops.get(tensor, tensor[0]) for rest, tensor in builder.rests.items()}
    loss = builder.values.get(outputs[0]) if training else None
    if isinstance(loss, MadeBy):
        last_ops.pop((loss.op, loss.output), None)
    return last_ops


def _visit(builder: OpBuilder, node: Node) -> Any:
    """Return the value of a node: of the op that is added for it, of an input that it shows, or None for a constant."""
    sources = nodes_read(node)
    if node.target is operator.getitem:
        value, index = builder.values.get(sources[0]), node.args[1]
        return _show(builder, node, value[index] if isinstance(value, tuple) and isinstance(index, int) else value)
    packet = packet_of(node)
    value = node.meta["val"]
    outputs = value if isinstance(value, list | tuple) else [value]
    draws = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    constant = packet in CONSTANT_LIKE or not (sources or draws)
    if constant and isinstance(value, Tensor) and value.numel() > 1:
        return FilledValue(value.untyped_storage().nbytes())
    if constant or not any(isinstance(o, Tensor) for o in outputs):
        return None
    label = node.meta["label"]
    kind = str(packet)
    name = title(label.module, label.call, label.part, kind)
    if is_view(node.target):
        base = builder.values.get(sources[0])
        if not isinstance(base, MadeBy | ParameterValue) or tensor_bytes(outputs[0]) >= tensor_bytes(
            sources[0].meta["val"]
        ):
            if isinstance(value, list | tuple):
                base = (base,) * len(outputs)
            return _show(builder, node, base)
        base = _tensor(builder, sources[0])
        op = builder.add(node, label, kind, name, [base], [tensor_bytes(o) for o in outputs])
        builder.records[op] |= {"signature": signature(node), "complex": any(map(torch.is_complex, outputs))}
        if builder.is_resident(base):
            builder.records[op]["resident_outputs"] = list(range(len(outputs)))
        builder.together.union(base.op, op)
        values = [MadeBy(op, i) for i in range(len(outputs))]
        return tuple(values) if isinstance(value, list | tuple) else values[0]
    cast = (sources[0], value.dtype) if _casts_parameter(builder, node) else None
    if cast in builder.casts:
        return _show(builder, node, builder.casts[cast])
    inputs = [t for t in (_tensor(builder, source) for source in sources) if t is not None]
    # an empty output is left out, as a kernel that leaves one unused returns it, but not if the first one is empty
    nothing = isinstance(outputs[0], Tensor) and not outputs[0].numel()
    used = [o if isinstance(o, Tensor) and (o.numel() or nothing) else None for o in outputs]
    tensors = [o for o in used if o is not None]
    sizes = list(map(tensor_bytes, tensors))
    op = builder.add(node, label, kind, name, inputs, sizes, shared=cast is not None)  # a cast serves all micro-batches
    builder.add_rests(op, node, tensors)
    builder.add_filled(op, node)
    builder.read += [
        (op, sum(isinstance(builder.values.get(before), MadeBy) for before in sources[:place]), value)
        for place, value in enumerate(map(builder.values.get, sources))
        if isinstance(value, BufferValue)
    ]
    if draws:
        builder.random.add(op)
    in_place = is_in_place(node) and isinstance(builder.values.get(sources[0]), MadeBy)
    is_complex = any(map(torch.is_complex, tensors))
    builder.records[op] |= {**builder.cost(node), "in_place": in_place, "complex": is_complex}
    _settle(builder, op, sources)
    numbers = iter(range(len(used)))
    made_or_none = [None if o is None else MadeBy(op, next(numbers)) for o in used]
    if cast is not None:
        builder.casts[cast] = made_or_none[0]
    return tuple(made_or_none) if isinstance(value, list | tuple) else made_or_none[0]


def _tensor(builder: OpBuilder, node: Node) -> Any:
    """Return the tensor that an op reads, None if no op makes it; add the op of a parameter at its first use."""
    value = builder.values.get(node)
    if not isinstance(value, ParameterValue):
        return value if isinstance(value, MadeBy) else None
    label, shown = Label(value.path.rpartition(".")[0]), value.shown
    op = builder.add(shown[0], label, "parameter", value.path, [], [value.bytes], shared=True)
    builder.records[op] |= {"param_bytes": value.bytes, "trained_bytes": 0, "dtype": dtype(shown[0])}
    builder.nodes[op] = [view.name for view in shown]
    value.used = MadeBy(op, 0)
    builder.values |= dict.fromkeys(shown, value.used)
    return value.used


def _casts_parameter(builder: OpBuilder, node: Node) -> bool:
    """Whether a node casts a parameter, or a part of one, to another dtype: one copy serves all its users.

    But autocast keeps no copy until the backward pass: what a checkpoint computes again has a copy of its own.
    """
    if packet_of(node) is not aten._to_copy or node.meta["label"].recomputed:
        return False
    value = builder.values.get(node.all_input_nodes[0])
    return isinstance(value, ParameterValue) or (isinstance(value, MadeBy) and builder.is_resident(value))


def _show(builder: OpBuilder, node: Node, value: Any) -> Any:
    """Add a node that only shows a tensor, or several, to the nodes of the op that makes it; return the value."""
    if isinstance(value, ParameterValue) and value.used is None:
        value.shown.append(node)
    value = value.used or value if isinstance(value, ParameterValue) else value
    makers = {v.op for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, MadeBy)}
    for op in makers:
        builder.nodes[op].append(node.name)
    return value


def _settle(builder: OpBuilder, op: int, sources: Sequence[Node]) -> None:
    """Count the bytes of the buffers among the sources of an op with this op, if it is the first to use them."""
    for source in sources:
        value = builder.values.get(source)
        if isinstance(value, BufferValue) and value not in builder.counted:
            builder.counted.add(value)
            _count(builder.records[op], value.bytes)


def _trained(builder: OpBuilder, parameters: Sequence[Node], gradients: Sequence[Node | None]) -> list[str]:
    """Count the bytes of the parameters that have a gradient as trained; return the names of their ops."""
    names = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        weight = builder.values[parameter]
        if isinstance(weight, MadeBy) and gradient is not None:
            record = builder.records[weight.op]
            record["trained_bytes"] = record["param_bytes"]
            names.append(record["name"])
    return names


def _add_idle(builder: OpBuilder, placeholders: Sequence[Node]) -> None:
    """Add the parameters and buffers that no op reads; see `placeto.capture.building.idle`."""
    values = ((node, builder.values.get(node)) for node in placeholders)
    idle: dict[Node, BufferValue | ParameterValue] = {
        node: value
        for node, value in values
        if isinstance(value, ParameterValue) or (isinstance(value, BufferValue) and value not in builder.counted)
    }
    first_ops: dict[int | str, int] = {}  # home -> an op there
    for (node, tensor), home in zip(idle.items(), homes(list(idle.values()), builder.records), strict=True):
        is_buffer = isinstance(tensor, BufferValue)
        if isinstance(home, int) and is_buffer and builder.records[home]["type"] != "parameter":
            _count(builder.records[home], tensor.bytes)
            continue
        kind, outputs = ("buffer", []) if is_buffer else ("parameter", [tensor.bytes])
        op = builder.add(node, Label(tensor.path.rpartition(".")[0]), kind, tensor.path, [], outputs, shared=True)
        if isinstance(tensor, ParameterValue):
            builder.nodes[op] = [shown.name for shown in tensor.shown]
        _count(builder.records[op], tensor.bytes)
        builder.together.union(first_ops.setdefault(home, home if isinstance(home, int) else op), op)


def _count(record: dict[str, Any], size: int) -> None:
    """Add the bytes of a parameter or buffer that isn't trained to the bytes of an op."""
    record["trained_bytes"] = record.get("trained_bytes", 0)
    record["param_bytes"] = record.get("param_bytes", 0) + size


@cache
def is_view(target: Any) -> bool:
    """Whether an op moves no data: all that it returns are views of its arguments, or it is one of `_ALIASES`."""
    packet = getattr(target, "overloadpacket", None)
    if packet in _ALIASES or str(packet) == _WAIT:
        return True
    schema = getattr(target, "_schema", None)
    return bool(schema and schema.returns and all(r.alias_info and not r.alias_info.is_write for r in schema.returns))
