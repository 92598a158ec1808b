"""From a traced `torch.fx` graph to a `ComputationGraph`: which nodes are ops, what they cost, what they are called."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from placeto.capture.costs import bytes_accessed, dtype, flops, in_tf32, kernel, nodes_read, tensor_bytes
from placeto.capture.dependencies import reached
from placeto.capture.idle import Idle, homes
from placeto.capture.labels import Label
from placeto.capture.lifetimes import HELD, hold
from placeto.capture.micro_batches import HOME
from placeto.capture.repetition import LIKE
from placeto.capture.signatures import signature
from placeto.capture.waiting import hold_back
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import GRADIENT
from placeto.problem.graph.labels import NO_MICRO_BATCH

aten = torch.ops.aten
# ops that move no data, though their schema doesn't say that they are views
_ALIASES = {aten._unsafe_view, aten.unsafe_split, aten.unsafe_split_with_sizes, aten.unsafe_chunk, aten.lift_fresh}
# ops that read no value of their input, so that what they make counts as a constant
CONSTANT_LIKE = {
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.empty_like,
    aten.new_zeros,
    aten.new_ones,
    aten.new_full,
    aten.new_empty,
    aten.new_empty_strided,
}


@dataclass(frozen=True)
class _Tensor:
    """A tensor that an op of the graph makes."""

    op: int
    output: int


@dataclass(frozen=True)
class _Buffer:
    """A buffer of the module: resident, never sent."""

    path: str
    bytes: int


@dataclass(eq=False)
class _Parameter:
    """A parameter, with the nodes that show it before an op first uses it."""

    path: str
    bytes: int
    shown: list[Node]  # the parameter, then views of it
    used: _Tensor | None = None  # the tensor of the parameter's op, which is added at the first use


@dataclass
class _Builder:
    """The op records that have been made so far, and what further ones depend on."""

    tf32: bool  # whether products of float32 compute in TF32
    records: list[dict[str, Any]] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)
    costs: dict[Node, dict[str, Any]] = field(default_factory=dict)  # node -> its costs, also those of its copies
    values: dict[Node, Any] = field(default_factory=dict)  # _Tensor, tuple of it, _Buffer, _Parameter, or None
    counted: set[_Buffer] = field(default_factory=set)  # buffers whose bytes are counted with their first user
    leader: list[int] = field(default_factory=list)  # union-find over ops: colocation
    labels: list[Label] = field(default_factory=list)  # where each op comes from
    random: set[int] = field(default_factory=set)  # ops that draw random numbers
    nodes: list[list[str]] = field(default_factory=list)  # names of the traced nodes behind each op
    casts: dict[tuple[Any, Any], Any] = field(default_factory=dict)  # (parameter, dtype) -> its copy, for all users

    def add(
        self, node: Node, label: Label, kind: str, name: str, inputs: Sequence[_Tensor], outputs: Sequence[int]
    ) -> int:
        """Append an op for a traced node, and return its number; an op whose name is taken gets a suffix."""
        self.names[name] += 1
        unique = name if self.names[name] == 1 else f"{name}_{self.names[name] - 1}"
        pairs = dict.fromkeys((self.records[t.op]["name"], t.output) for t in inputs)
        self.records.append(
            {"name": unique, "type": kind, "module": label.module, "inputs": list(pairs), "outputs": list(outputs)}
        )
        self.records[-1]["pass"] = label.part
        if label.micro_batch != NO_MICRO_BATCH:
            self.records[-1]["micro_batch"] = label.micro_batch
        self.leader.append(len(self.leader))
        self.labels.append(label)
        self.nodes.append([node.name])
        return len(self.records) - 1

    def cost(self, node: Node) -> dict[str, Any]:
        """The costs of a traced node as fields of an op record, computed once for a node and its copies."""
        original = node.meta.get(LIKE, node)
        if original not in self.costs:
            work = float(flops(node))
            self.costs[original] = {
                "signature": signature(node),
                "flops": work,
                "bytes_accessed": float(bytes_accessed(node)),
                "dtype": "tf32" if self.tf32 and work and in_tf32(node) else dtype(node),
                "kernel": kernel(node),
            }
        return self.costs[original]

    def is_resident(self, tensor: _Tensor) -> bool:
        """Whether a tensor is a parameter, a part of one, or a gradient that is kept with its parameter."""
        record = self.records[tensor.op]
        return record["type"] == "parameter" or tensor.output in record.get("resident_outputs", ())

    def find(self, op: int) -> int:
        while self.leader[op] != op:
            self.leader[op] = op = self.leader[self.leader[op]]
        return op

    def join(self, one: int, other: int) -> None:
        one, other = sorted((self.find(one), self.find(other)))
        self.leader[other] = one


def computation_graph(
    traced: GraphModule,
    parameters: Sequence[str],
    trained: Sequence[str],
    buffers: Sequence[str],
    name: str,
    mode: str,
    tf32: bool = False,
) -> tuple[ComputationGraph, tuple[tuple[str, ...], ...], dict[str, tuple[str, int] | None]]:
    """Make the graph of the ops that the outputs of a traced graph depend on.

    Parameters and buffers that no op reads are ops too, or their bytes are counted with one.

    Args:
        traced: functional; the first placeholders are the parameters, then the buffers; every node has
            ``meta["val"]`` (tensors of its layout) and ``meta["label"]``.
        parameters: paths of the parameters.
        trained: paths of the parameters whose gradients (None where there is none) follow the loss in the outputs; more
            outputs may follow.
        buffers: paths of the buffers.
        name: the name of the graph.
        mode: "training" or "inference".
        tf32: whether matrix products and convolutions of float32 compute in TF32.

    Returns:
        The graph; for each op, the names of the traced nodes that it stands for; and for each parameter with a
        gradient, its op and output, or None for a constant. A node belongs to one op at most: to its own, or, if it
        moves no data, to the op whose tensor it shows.

    Raises:
        GraphError: no op is left.
    """
    needed = reached(_kept(traced), nodes_read)
    builder = _Builder(tf32)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, path in zip(placeholders, parameters, strict=False):
        builder.values[node] = _Parameter(path, tensor_bytes(node.meta["val"]), [node])
    for node, path in zip(placeholders[len(parameters) :], buffers, strict=False):
        builder.values[node] = _Buffer(path, tensor_bytes(node.meta["val"]))
    latest: dict[Node, int] = {}  # node -> the last op that has run once the node has run
    for node in traced.graph.nodes:
        if node.op == "call_function" and node in needed:
            builder.values[node] = _visit(builder, node)
        latest[node] = len(builder.records) - 1
    kept: dict[str, tuple[str, int] | None] = {}
    if mode == "training":
        loss, *gradients = _outputs(traced)[: 1 + len(trained)]
        nodes = dict(zip(parameters, placeholders, strict=False))
        kept = _keep_gradients(builder, [nodes[path] for path in trained], gradients)
        hold_back(builder.records, builder.labels, builder.random, _losses(builder, loss))
    hold(builder.records, _held(builder, latest))
    _add_idle(builder, placeholders)
    leaders = [builder.find(op) for op in range(len(builder.records))]
    sizes = Counter(leaders)
    for leader, record in zip(leaders, builder.records, strict=True):
        if sizes[leader] > 1:
            record["colocation"] = str(leader)
    return ComputationGraph.from_ops(name, builder.records, mode), tuple(map(tuple, builder.nodes)), kept


def _outputs(traced: GraphModule) -> Sequence[Any]:
    return next(node for node in traced.graph.nodes if node.op == "output").args[0]


def _held(builder: _Builder, latest: dict[Node, int]) -> dict[tuple[int, int], int]:
    """Tensor, as op and output -> the last op that ran before it was freed; for tensors that aren't resident."""
    found: dict[tuple[int, int], int] = {}
    for node, value in builder.values.items():
        until = latest.get(node.meta.get(HELD, node))
        if until is not None and isinstance(value, _Tensor) and not builder.is_resident(value):
            key = value.op, value.output
            found[key] = max(found.get(key, until), until)
    return found


def _losses(builder: _Builder, loss: Node) -> dict[int, int]:
    """Number of a micro-batch -> the op that makes its loss; `NO_MICRO_BATCH` -> the op that makes the whole loss."""
    made = builder.values.get(loss)
    if not isinstance(made, _Tensor):
        return {}
    found: dict[int, int] = {}
    index = {record["name"]: op for op, record in enumerate(builder.records)}
    several = any(label.micro_batch != NO_MICRO_BATCH for label in builder.labels)

    def added(op: int) -> list[int]:
        """The ops whose sum an op is, if it adds up the losses of micro-batches."""
        is_sum = several and builder.labels[op].micro_batch == NO_MICRO_BATCH
        return [index[source] for source, _ in builder.records[op]["inputs"]] if is_sum else []

    for op in reached([made.op], added):
        found.setdefault(builder.labels[op].micro_batch, op)
    return found


def _kept(traced: GraphModule) -> list[Node]:
    """The outputs, and what is written back to buffers and parameters, except for counters."""
    written = traced.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    values = [node.all_input_nodes[-1] for node in written if node.all_input_nodes[0].meta["val"].numel() > 1]
    return [*traced.graph.find_nodes(op="output"), *values]


def _visit(builder: _Builder, node: Node) -> Any:
    """Return the value of a node: of the op that is added for it, of an input that it shows, or None for a constant."""
    sources = nodes_read(node)
    if node.target is operator.getitem:
        value, index = builder.values.get(sources[0]), node.args[1]
        return _show(builder, node, value[index] if isinstance(value, tuple) and isinstance(index, int) else value)
    packet = getattr(node.target, "overloadpacket", node.target)
    value = node.meta["val"]
    outputs = value if isinstance(value, list | tuple) else [value]
    if not sources or packet in CONSTANT_LIKE or not any(isinstance(o, Tensor) for o in outputs):
        return None
    label = node.meta["label"]
    if HOME in node.meta:
        return _gradient(builder, node, label)
    prefix = label.module + (f"@{label.call}" if label.call else "") + ("/grad" if label.backward else "")
    kind = str(packet)
    title = f"{prefix}/{kind.split('.')[-1]}".lstrip("/")
    if is_view(node.target):
        base = builder.values.get(sources[0])
        if not isinstance(base, _Tensor | _Parameter) or tensor_bytes(outputs[0]) >= tensor_bytes(
            sources[0].meta["val"]
        ):
            if isinstance(value, list | tuple):
                base = (base,) * len(outputs)
            return _show(builder, node, base)
        base = _tensor(builder, sources[0])
        op = builder.add(node, label, kind, title, [base], [tensor_bytes(o) for o in outputs])
        builder.records[op]["signature"] = builder.cost(node)["signature"]
        if builder.is_resident(base):
            builder.records[op]["resident_outputs"] = list(range(len(outputs)))
        builder.join(base.op, op)
        made = [_Tensor(op, i) for i in range(len(outputs))]
        return tuple(made) if isinstance(value, list | tuple) else made[0]
    cast = (sources[0], value.dtype) if _casts_parameter(builder, node) else None
    if cast in builder.casts:
        return _show(builder, node, builder.casts[cast])
    if cast is not None:  # the copy serves all micro-batches
        label = replace(label, micro_batch=NO_MICRO_BATCH)
    inputs = [t for t in (_tensor(builder, source) for source in sources) if t is not None]
    # an empty output is left out, as a kernel that leaves one unused returns it, but not if the first one is empty
    nothing = isinstance(outputs[0], Tensor) and not outputs[0].numel()
    used = [o if isinstance(o, Tensor) and (o.numel() or nothing) else None for o in outputs]
    op = builder.add(node, label, kind, title, inputs, [tensor_bytes(o) for o in used if o is not None])
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        builder.random.add(op)
    builder.records[op] |= builder.cost(node)
    _settle(builder, op, sources)
    numbers = iter(range(len(used)))
    made_or_none = [None if o is None else _Tensor(op, next(numbers)) for o in used]
    if cast is not None:
        builder.casts[cast] = made_or_none[0]
    return tuple(made_or_none) if isinstance(value, list | tuple) else made_or_none[0]


def _gradient(builder: _Builder, node: Node, label: Label) -> Any:
    """Add the op, without cost, of a parameter's gradient summed over micro-batches; return its tensor or None."""
    total = builder.values.get(nodes_read(node)[0])
    if not isinstance(total, _Tensor):
        return None
    name = f"{node.meta[HOME]}/gradient"
    op = builder.add(node, label, GRADIENT, name, [total], [tensor_bytes(node.meta["val"])])
    return _Tensor(op, 0)


def _tensor(builder: _Builder, node: Node) -> Any:
    """Return the tensor that an op reads, None if no op makes it; add the op of a parameter at its first use."""
    value = builder.values.get(node)
    if not isinstance(value, _Parameter):
        return value if isinstance(value, _Tensor) else None
    label, shown = Label(value.path.rpartition(".")[0]), value.shown
    op = builder.add(shown[0], label, "parameter", value.path, [], [value.bytes])
    builder.records[op] |= {"param_bytes": value.bytes, "trained_bytes": 0, "dtype": dtype(shown[0])}
    builder.nodes[op] = [other.name for other in shown]
    value.used = _Tensor(op, 0)
    builder.values |= dict.fromkeys(shown, value.used)
    return value.used


def _casts_parameter(builder: _Builder, node: Node) -> bool:
    """Whether a node casts a parameter, or a part of one, to another dtype: one copy serves all its users.

    But autocast keeps no copy until the backward pass: what a checkpoint computes again has a copy of its own.
    """
    if getattr(node.target, "overloadpacket", None) is not aten._to_copy or node.meta["label"].recomputed:
        return False
    value = builder.values.get(node.all_input_nodes[0])
    return isinstance(value, _Parameter) or (isinstance(value, _Tensor) and builder.is_resident(value))


def _show(builder: _Builder, node: Node, value: Any) -> Any:
    """Add a node that only shows a tensor, or several, to the nodes of the op that makes it; return the value."""
    if isinstance(value, _Parameter) and value.used is None:
        value.shown.append(node)
    value = value.used or value if isinstance(value, _Parameter) else value
    makers = {v.op for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, _Tensor)}
    for op in makers:
        builder.nodes[op].append(node.name)
    return value


def _settle(builder: _Builder, op: int, sources: Sequence[Node]) -> None:
    """Count the bytes of the buffers among the sources of an op with this op, if it is the first to use them."""
    for source in sources:
        value = builder.values.get(source)
        if isinstance(value, _Buffer) and value not in builder.counted:
            builder.counted.add(value)
            _count(builder.records[op], value.bytes)


def _keep_gradients(
    builder: _Builder, parameters: Sequence[Node], gradients: Sequence[Node | None]
) -> dict[str, tuple[str, int] | None]:
    """Colocate each parameter with the op that makes its gradient, and mark the gradient as resident.

    Returns parameter -> op and output of its gradient, None for a constant; parameters without one are left out.
    """
    kept: dict[str, tuple[str, int] | None] = {}
    for parameter, gradient in zip(parameters, gradients, strict=True):
        weight, made = builder.values[parameter], None if gradient is None else builder.values.get(gradient)
        if isinstance(weight, _Tensor) and gradient is not None:
            record = builder.records[weight.op]
            record["trained_bytes"] = record["param_bytes"]
            kept[record["name"]] = None
            if isinstance(made, _Tensor):
                kept[record["name"]] = builder.records[made.op]["name"], made.output
                builder.join(weight.op, made.op)
                if not builder.is_resident(made):
                    builder.records[made.op].setdefault("resident_outputs", []).append(made.output)
    return kept


def _add_idle(builder: _Builder, placeholders: Sequence[Node]) -> None:
    """Add the parameters and buffers that no op reads; see `placeto.capture.idle`."""
    idle: dict[Node, Idle] = {}
    for node in placeholders:
        value = builder.values.get(node)
        if isinstance(value, _Parameter) or (isinstance(value, _Buffer) and value not in builder.counted):
            idle[node] = Idle(value.path, value.bytes, isinstance(value, _Parameter))
    kept: dict[int | str, int] = {}  # home -> an op there
    for (node, one), home in zip(idle.items(), homes(list(idle.values()), builder.records), strict=True):
        if isinstance(home, int) and not one.is_parameter and builder.records[home]["type"] != "parameter":
            _count(builder.records[home], one.bytes)
            continue
        kind = "parameter" if one.is_parameter else "buffer"
        made = [one.bytes] if one.is_parameter else []
        op = builder.add(node, Label(one.path.rpartition(".")[0]), kind, one.path, [], made)
        if one.is_parameter:
            builder.nodes[op] = [shown.name for shown in builder.values[node].shown]
        _count(builder.records[op], one.bytes)
        builder.join(kept.setdefault(home, home if isinstance(home, int) else op), op)


def _count(record: dict[str, Any], size: int) -> None:
    """Add the bytes of a parameter or buffer that isn't trained to the bytes of an op."""
    record["trained_bytes"] = record.get("trained_bytes", 0)
    record["param_bytes"] = record.get("param_bytes", 0) + size


@cache
def is_view(target: Any) -> bool:
    """Whether an op moves no data: all that it returns are views of its arguments, or it is one of `_ALIASES`."""
    if getattr(target, "overloadpacket", None) in _ALIASES:
        return True
    schema = getattr(target, "_schema", None)
    return bool(schema and schema.returns and all(r.alias_info and not r.alias_info.is_write for r in schema.returns))
