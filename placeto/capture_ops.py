"""From a traced `torch.fx` graph to a `ComputationGraph`: which nodes are ops, what they cost, what they are called."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from placeto.graph import ComputationGraph

aten = torch.ops.aten
# not views by their schema, though they move no data
_ALIASES = {aten._unsafe_view, aten.unsafe_split, aten.unsafe_split_with_sizes, aten.unsafe_chunk, aten.lift_fresh}
# the values of their input don't matter: constants
_CONSTANT_LIKE = {
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
# read only as much of their first input as they write
_GATHERS = {aten.embedding, aten.index_select, aten.gather, aten.index, aten.nll_loss_forward}


@dataclass(frozen=True)
class Label:
    """Where a traced node comes from."""

    module: str = ""  # path of the nn.Module
    call: int = 0  # how many calls of this module came before
    backward: bool = False


@dataclass(frozen=True)
class _Tensor:
    """A tensor that an op of the graph makes."""

    op: int
    output: int


@dataclass(frozen=True)
class _Buffer:
    """A buffer of the module: resident, never sent."""

    bytes: int


@dataclass(frozen=True)
class _Parameter:
    """A parameter that hasn't been used yet."""

    path: str
    bytes: int


@dataclass
class _Builder:
    """Op records in the making."""

    records: list[dict[str, Any]] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)
    values: dict[Node, Any] = field(default_factory=dict)  # _Tensor, tuple of it, _Buffer, _Parameter, or None
    homeless: set[int] = field(default_factory=set)  # parameters without a real user yet
    counted: set[Node] = field(default_factory=set)  # buffers that have found their first user
    leader: list[int] = field(default_factory=list)  # union-find over ops: colocation

    def add(self, label: Label, kind: str, name: str, inputs: Sequence[_Tensor], outputs: Sequence[int]) -> int:
        self.names[name] += 1
        unique = name if self.names[name] == 1 else f"{name}_{self.names[name] - 1}"
        pairs = dict.fromkeys((self.records[t.op]["name"], t.output) for t in inputs)
        self.records.append(
            {"name": unique, "type": kind, "module": label.module, "inputs": list(pairs), "outputs": list(outputs)}
        )
        self.leader.append(len(self.leader))
        return len(self.records) - 1

    def find(self, op: int) -> int:
        while self.leader[op] != op:
            op = self.leader[op]
        return op

    def join(self, one: int, other: int) -> None:
        one, other = sorted((self.find(one), self.find(other)))
        self.leader[other] = one


def computation_graph(
    traced: GraphModule, parameters: Sequence[str], trained: Sequence[str], num_buffers: int, name: str, mode: str
) -> ComputationGraph:
    """The ops that the outputs of a traced graph depend on.

    Args:
        traced: functional; the first placeholders are the parameters, then the buffers; every node has
            ``meta["val"]`` (fake tensors) and ``meta["custom"]["label"]``.
        parameters: paths.
        trained: paths of the parameters whose gradients (None where there is none) follow the loss in the outputs.
        num_buffers: how many.

    Raises:
        GraphError: no op is left.
    """
    needed = _needed(traced)
    builder = _Builder()
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for node, path in zip(placeholders, parameters, strict=False):
        builder.values[node] = _Parameter(path, _bytes(node.meta["val"]))
    for node in placeholders[len(parameters) : len(parameters) + num_buffers]:
        builder.values[node] = _Buffer(_bytes(node.meta["val"]))
    for node in traced.graph.nodes:
        if node.op == "call_function" and node in needed:
            builder.values[node] = _visit(builder, node)
    if trained:
        nodes = dict(zip(parameters, placeholders, strict=False))
        _keep_gradients(builder, [nodes[path] for path in trained], _outputs(traced)[1:])
    leaders = [builder.find(op) for op in range(len(builder.records))]
    sizes = Counter(leaders)
    for leader, record in zip(leaders, builder.records, strict=True):
        if sizes[leader] > 1:
            record["colocation"] = str(leader)
    return ComputationGraph.from_ops(name, builder.records, mode)


def _outputs(traced: GraphModule) -> Sequence[Any]:
    return next(node for node in traced.graph.nodes if node.op == "output").args[0]


def _needed(traced: GraphModule) -> set[Node]:
    needed: set[Node] = set()
    stack = [node for node in traced.graph.nodes if node.op == "output"]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack.extend(_sources(node))
    return needed


def _sources(node: Node) -> list[Node]:
    """The nodes whose values a node reads: of an input whose gradient is asked for, a convolution reads the shape."""
    if getattr(node.target, "overloadpacket", None) is not aten.convolution_backward:
        return node.all_input_nodes
    gradient, x, weight = cast(tuple[Node, Node, Node], node.args[:3])
    of_input, of_weight, _ = cast(Sequence[bool], node.args[10])
    return [gradient, *([x] if of_weight else []), *([weight] if of_input else [])]


def _visit(builder: _Builder, node: Node) -> Any:
    """The value of a node: add the op that makes it, or pass an input through."""
    sources = _sources(node)
    if node.target is operator.getitem:
        value, index = builder.values.get(sources[0]), node.args[1]
        return value[index] if isinstance(value, tuple) and isinstance(index, int) else value
    packet = getattr(node.target, "overloadpacket", node.target)
    outputs = tree_flatten(node.meta["val"])[0]
    if not sources or packet in _CONSTANT_LIKE or not any(isinstance(o, Tensor) for o in outputs):
        return None
    label = (node.meta.get("custom") or {}).get("label", Label())
    prefix = label.module + (f"@{label.call}" if label.call else "") + ("/grad" if label.backward else "")
    kind = str(packet)
    title = f"{prefix}/{kind.split('.')[-1]}".lstrip("/")
    if _is_view(node):
        base = builder.values.get(sources[0])
        if not isinstance(base, _Tensor | _Parameter) or _bytes(outputs[0]) >= _bytes(sources[0].meta["val"]):
            return base if not isinstance(node.meta["val"], list | tuple) else (base,) * len(outputs)
        base = _tensor(builder, sources[0])
        op = builder.add(label, kind, title, [base], [_bytes(o) for o in outputs])
        builder.join(base.op, op)
        made = [_Tensor(op, i) for i in range(len(outputs))]
        return tuple(made) if isinstance(node.meta["val"], list | tuple) else made[0]
    inputs = [t for t in (_tensor(builder, source) for source in sources) if t is not None]
    used = [o if isinstance(o, Tensor) and o.numel() else None for o in outputs]
    op = builder.add(label, kind, title, inputs, [_bytes(o) for o in used if o is not None])
    record = builder.records[op]
    record["flops"] = float(_flops(node))
    record["bytes_accessed"] = float(_bytes_accessed(node))
    _settle(builder, op, inputs, sources)
    numbers = iter(range(len(used)))
    made_or_none = [None if o is None else _Tensor(op, next(numbers)) for o in used]
    return tuple(made_or_none) if isinstance(node.meta["val"], list | tuple) else made_or_none[0]


def _tensor(builder: _Builder, node: Node) -> Any:
    """The tensor behind an input; the op that stands for a parameter is added where it is first used."""
    value = builder.values.get(node)
    if not isinstance(value, _Parameter):
        return value if isinstance(value, _Tensor) else None
    op = builder.add(Label(value.path.rpartition(".")[0]), "parameter", value.path, [], [value.bytes])
    builder.records[op]["param_bytes"] = value.bytes
    builder.homeless.add(op)
    tensor = _Tensor(op, 0)
    for other, known in list(builder.values.items()):
        if known is value:
            builder.values[other] = tensor
    return tensor


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


def _keep_gradients(builder: _Builder, parameters: Sequence[Node], gradients: Sequence[Node | None]) -> None:
    """Colocate each parameter with the op that makes its gradient: constant gradients have none."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        weight, made = builder.values[parameter], None if gradient is None else builder.values.get(gradient)
        if isinstance(weight, _Tensor) and isinstance(made, _Tensor):
            builder.join(weight.op, made.op)


def _is_view(node: Node) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    schema = getattr(node.target, "_schema", None)
    if packet in _ALIASES:
        return True
    return bool(schema and schema.returns and all(r.alias_info and not r.alias_info.is_write for r in schema.returns))


def _bytes(value: Any) -> int:
    """Bytes of a tensor's storage, or of the part of it that a view shows."""
    return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())


def _bytes_accessed(node: Node) -> int:
    read = [
        sum(_bytes(v) for v in tree_flatten(source.meta["val"])[0] if isinstance(v, Tensor))
        for source in _sources(node)
    ]
    written = sum(_bytes(v) for v in tree_flatten(node.meta["val"])[0] if isinstance(v, Tensor))
    if getattr(node.target, "overloadpacket", None) in _GATHERS:
        read[0] = min(read[0], written)
    return sum(read) + written


def _flops(node: Node) -> int:
    packet = getattr(node.target, "overloadpacket", node.target)
    formula = _FORMULAS.get(packet) or flop_registry.get(packet)
    if formula is None:
        return 0

    def value(argument: Any) -> Any:
        return argument.meta["val"] if isinstance(argument, Node) else argument

    args = torch.fx.node.map_aggregate(node.args, value)
    kwargs = torch.fx.node.map_aggregate(node.kwargs, value)
    return int(formula(*args, **kwargs, out_val=node.meta["val"]))


def _convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
    out_val: Any,
) -> int:
    """As much as the forward pass for each of the two gradients; torch's own formula ignores groups."""
    positions = prod((x if transposed else gradient).shape[2:])
    return sum(output_mask[:2]) * 2 * x.shape[0] * positions * weight.numel()


def _split_convolution_backward(*args: Any) -> Any:
    """The gradient of the input by itself, then those of weight and bias."""
    of_input, of_weight, of_bias = args[10]
    if not (of_input and (of_weight or of_bias)):
        return NotImplemented
    backward = aten.convolution_backward.default
    gradient = backward(*args[:10], [True, False, False])[0]
    return gradient, *backward(*args[:10], [False, of_weight, of_bias])[1:]


def _attention(q: Tensor, k: Tensor, v: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return sdpa_flop(q.shape, k.shape, v.shape)


def _attention_backward(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, out_val: Any, **kw: Any) -> int:
    return sdpa_backward_flop(gradient.shape, q.shape, k.shape, v.shape)


def _dot(a: Tensor, b: Tensor, out_val: Any) -> int:
    return 2 * a.numel()


_FORMULAS: dict[Any, Callable[..., int]] = {
    aten.convolution_backward: _convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten.mv: _dot,
    aten.dot: _dot,
}

# for make_fx: ops that do what several kernels do
DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.convolution_backward.default: _split_convolution_backward
}
