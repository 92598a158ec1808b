"""From a traced `torch.fx` graph to a `ComputationGraph`: which nodes are ops, what they cost, what they are called."""

from __future__ import annotations

import heapq
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from placeto.capture.costs import bytes_accessed, dtype, flops, in_tf32, kernel, nodes_read, tensor_bytes
from placeto.capture.labels import Label
from placeto.capture.signatures import signature
from placeto.problem.graph import ComputationGraph

aten = torch.ops.aten
# not views by their schema, though they move no data
_ALIASES = {aten._unsafe_view, aten.unsafe_split, aten.unsafe_split_with_sizes, aten.unsafe_chunk, aten.lift_fresh}
# the values of their input don't matter: constants
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

    bytes: int


@dataclass(eq=False)
class _Parameter:
    """A parameter that hadn't been used yet when a node got to show it."""

    path: str
    bytes: int
    shown: list[Node]  # the parameter, then views of it
    used: _Tensor | None = None


@dataclass
class _Builder:
    """Op records in the making."""

    tf32: bool  # whether products of float32 compute in it
    records: list[dict[str, Any]] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)
    values: dict[Node, Any] = field(default_factory=dict)  # _Tensor, tuple of it, _Buffer, _Parameter, or None
    homeless: set[int] = field(default_factory=set)  # parameters without a real user yet
    counted: set[Node] = field(default_factory=set)  # buffers that have found their first user
    signals: dict[int, int] = field(default_factory=dict)  # op -> its output of no bytes, for what waits for it
    leader: list[int] = field(default_factory=list)  # union-find over ops: colocation
    backward: list[bool] = field(default_factory=list)  # which ops are of the backward pass
    random: set[int] = field(default_factory=set)  # ops that draw random numbers
    nodes: list[list[str]] = field(default_factory=list)  # names of the traced nodes behind each op
    casts: dict[tuple[Any, Any], Any] = field(default_factory=dict)  # of parameters: to a dtype, once for all users

    def add(
        self, node: Node, label: Label, kind: str, name: str, inputs: Sequence[_Tensor], outputs: Sequence[int]
    ) -> int:
        self.names[name] += 1
        unique = name if self.names[name] == 1 else f"{name}_{self.names[name] - 1}"
        pairs = dict.fromkeys((self.records[t.op]["name"], t.output) for t in inputs)
        self.records.append(
            {"name": unique, "type": kind, "module": label.module, "inputs": list(pairs), "outputs": list(outputs)}
        )
        if node.op == "call_function":
            self.records[-1]["signature"] = signature(node)
        self.leader.append(len(self.leader))
        self.backward.append(label.backward)
        self.nodes.append([node.name])
        return len(self.records) - 1

    def is_resident(self, tensor: _Tensor) -> bool:
        """Whether a tensor is a parameter, or a part of one."""
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
    num_buffers: int,
    name: str,
    mode: str,
    tf32: bool = False,
) -> tuple[ComputationGraph, tuple[tuple[str, ...], ...], dict[str, tuple[str, int] | None]]:
    """The ops that the outputs of a traced graph depend on, the traced nodes behind each of them, and the gradients.

    Nodes are given by name; gradients, by parameter, as op and output, or None for a constant. A node stands behind
    one op at most: that of its own, or, if it moves no data, the one whose tensor it shows.

    Args:
        traced: functional; the first placeholders are the parameters, then the buffers; every node has
            ``meta["val"]`` (tensors of its layout) and ``meta["label"]``.
        parameters: paths.
        trained: paths of the parameters whose gradients (None where there is none) follow the loss in the outputs.
        num_buffers: how many.
        tf32: whether matrix products and convolutions of float32 compute in it.

    Raises:
        GraphError: no op is left.
    """
    needed = _needed(traced)
    builder = _Builder(tf32)
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, path in zip(placeholders, parameters, strict=False):
        builder.values[node] = _Parameter(path, tensor_bytes(node.meta["val"]), [node])
    for node in placeholders[len(parameters) : len(parameters) + num_buffers]:
        builder.values[node] = _Buffer(tensor_bytes(node.meta["val"]))
    for node in traced.graph.nodes:
        if node.op == "call_function" and node in needed:
            builder.values[node] = _visit(builder, node)
    kept: dict[str, tuple[str, int] | None] = {}
    if mode == "training":
        loss, *gradients = _outputs(traced)
        nodes = dict(zip(parameters, placeholders, strict=False))
        kept = _keep_gradients(builder, [nodes[path] for path in trained], gradients)
        _hold_back(builder, builder.values.get(loss))
    leaders = [builder.find(op) for op in range(len(builder.records))]
    sizes = Counter(leaders)
    for leader, record in zip(leaders, builder.records, strict=True):
        if sizes[leader] > 1:
            record["colocation"] = str(leader)
    return ComputationGraph.from_ops(name, builder.records, mode), tuple(map(tuple, builder.nodes)), kept


def _outputs(traced: GraphModule) -> Sequence[Any]:
    return next(node for node in traced.graph.nodes if node.op == "output").args[0]


def _needed(traced: GraphModule) -> set[Node]:
    needed: set[Node] = set()
    stack = [node for node in traced.graph.nodes if node.op == "output"]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(nodes_read(node))
    return needed


def _visit(builder: _Builder, node: Node) -> Any:
    """The value of a node: add the op that makes it, or pass an input through."""
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
    prefix = label.module + (f"@{label.call}" if label.call else "") + ("/grad" if label.backward else "")
    kind = str(packet)
    title = f"{prefix}/{kind.split('.')[-1]}".lstrip("/")
    if _is_view(node.target):
        base = builder.values.get(sources[0])
        if not isinstance(base, _Tensor | _Parameter) or tensor_bytes(outputs[0]) >= tensor_bytes(
            sources[0].meta["val"]
        ):
            if isinstance(value, list | tuple):
                base = (base,) * len(outputs)
            return _show(builder, node, base)
        base = _tensor(builder, sources[0])
        op = builder.add(node, label, kind, title, [base], [tensor_bytes(o) for o in outputs])
        if builder.is_resident(base):
            builder.records[op]["resident_outputs"] = list(range(len(outputs)))
        builder.join(base.op, op)
        made = [_Tensor(op, i) for i in range(len(outputs))]
        return tuple(made) if isinstance(value, list | tuple) else made[0]
    cast = (sources[0], value.dtype) if _casts_parameter(builder, node) else None
    if cast in builder.casts:
        return _show(builder, node, builder.casts[cast])
    inputs = [t for t in (_tensor(builder, source) for source in sources) if t is not None]
    used = [o if isinstance(o, Tensor) and o.numel() else None for o in outputs]
    op = builder.add(node, label, kind, title, inputs, [tensor_bytes(o) for o in used if o is not None])
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        builder.random.add(op)
    record = builder.records[op]
    record["flops"] = float(flops(node))
    record["bytes_accessed"] = float(bytes_accessed(node))
    record["dtype"] = "tf32" if builder.tf32 and record["flops"] and in_tf32(node) else dtype(node)
    record["kernel"] = kernel(node)
    _settle(builder, op, inputs, sources)
    numbers = iter(range(len(used)))
    made_or_none = [None if o is None else _Tensor(op, next(numbers)) for o in used]
    if cast is not None:
        builder.casts[cast] = made_or_none[0]
    return tuple(made_or_none) if isinstance(value, list | tuple) else made_or_none[0]


def _tensor(builder: _Builder, node: Node) -> Any:
    """The tensor behind an input; the op that stands for a parameter is added where it is first used."""
    value = builder.values.get(node)
    if not isinstance(value, _Parameter):
        return value if isinstance(value, _Tensor) else None
    label, shown = Label(value.path.rpartition(".")[0]), value.shown
    op = builder.add(shown[0], label, "parameter", value.path, [], [value.bytes])
    builder.records[op] |= {"param_bytes": value.bytes, "trained_bytes": 0}
    builder.nodes[op] = [other.name for other in shown]
    builder.homeless.add(op)
    value.used = _Tensor(op, 0)
    builder.values |= dict.fromkeys(shown, value.used)
    return value.used


def _casts_parameter(builder: _Builder, node: Node) -> bool:
    """Whether a node is a parameter in another dtype, of which autocast keeps one copy for all users."""
    if getattr(node.target, "overloadpacket", None) is not aten._to_copy:
        return False
    value = builder.values.get(node.all_input_nodes[0])
    return isinstance(value, _Parameter) or (isinstance(value, _Tensor) and builder.is_resident(value))


def _show(builder: _Builder, node: Node, value: Any) -> Any:
    """Put a node that only shows a tensor, or several, behind the op that makes it; returns the value."""
    if isinstance(value, _Parameter) and value.used is None:
        value.shown.append(node)
    value = value.used or value if isinstance(value, _Parameter) else value
    makers = {v.op for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, _Tensor)}
    for op in makers:
        builder.nodes[op].append(node.name)
    return value


def _settle(builder: _Builder, op: int, inputs: Sequence[_Tensor], sources: Sequence[Node]) -> None:
    """Colocate parameters with their first real user, and count buffers there."""
    for tensor in inputs:
        root = builder.find(tensor.op)
        for parameter in [p for p in builder.homeless if builder.find(p) == root]:
            builder.homeless.discard(parameter)
            builder.join(parameter, op)
    for source in sources:
        value = builder.values.get(source)
        if isinstance(value, _Buffer) and source not in builder.counted:
            builder.counted.add(source)
            builder.records[op]["param_bytes"] = builder.records[op].get("param_bytes", 0) + value.bytes
            builder.records[op]["trained_bytes"] = 0


def _keep_gradients(
    builder: _Builder, parameters: Sequence[Node], gradients: Sequence[Node | None]
) -> dict[str, tuple[str, int] | None]:
    """Colocate each parameter with the op that makes its gradient, which is resident: constant gradients have none."""
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


def _hold_back(builder: _Builder, loss: Any) -> None:
    """Keep ops from running before their time, merely because they need nothing that takes long.

    What depends on no earlier op of the backward pass, such as an activation that is computed again, could run in the
    forward pass. It waits, for an output of no bytes, for the gradient that it will be combined with; where that is
    constant, for the loss. Random numbers of the forward pass wait in the same way for the tensor they are meant for.
    """
    index = {record["name"]: op for op, record in enumerate(builder.records)}
    producers = [{index[source] for source, _ in record["inputs"]} for record in builder.records]
    computed = [record["type"] != "parameter" for record in builder.records]
    consumers: list[list[int]] = [[] for _ in producers]
    for op, sources in enumerate(producers):
        for source in sources:
            consumers[source].append(op)
    after_loss = _descendants(consumers, loss.op) if isinstance(loss, _Tensor) else set()
    for op, sources in enumerate(producers):
        backward, early = builder.backward[op], op in builder.random and not sources
        if not (backward or early) or any(builder.backward[source] for source in sources):
            continue
        awaited = _partner(builder.backward if backward else computed, producers, consumers, op)
        if backward and awaited is None and isinstance(loss, _Tensor) and op not in after_loss:
            awaited = loss.op
        if awaited is not None:
            made_by = builder.records[awaited]
            if awaited not in builder.signals:
                builder.signals[awaited] = len(made_by["outputs"])
                made_by["outputs"].append(0)
            builder.records[op]["inputs"].append((made_by["name"], builder.signals[awaited]))


def _partner(
    eligible: Sequence[bool], producers: Sequence[set[int]], consumers: Sequence[list[int]], op: int
) -> int | None:
    """The last of the eligible ops before `op` among those with which what comes of it is first combined."""
    pending, seen = list(consumers[op]), {op}
    heapq.heapify(pending)
    while pending:
        user = heapq.heappop(pending)
        if user not in seen:
            seen.add(user)
            earlier = [source for source in producers[user] if eligible[source] and source < op]
            if earlier:
                return max(earlier)
            for other in consumers[user]:
                heapq.heappush(pending, other)
    return None


def _descendants(consumers: Sequence[Sequence[int]], op: int) -> set[int]:
    """The op, and all that needs it, directly or not."""
    stack, seen = [op], {op}
    while stack:
        new = set(consumers[stack.pop()]) - seen
        seen |= new
        stack.extend(new)
    return seen


@cache
def _is_view(target: Any) -> bool:
    """Whether an op shows tensors that it is given."""
    if getattr(target, "overloadpacket", None) in _ALIASES:
        return True
    schema = getattr(target, "_schema", None)
    return bool(schema and schema.returns and all(r.alias_info and not r.alias_info.is_write for r in schema.returns))
