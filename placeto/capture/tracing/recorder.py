"""Records what a function of tensors does: every op below autograd becomes a node of a `torch.fx` graph.

`torch.fx.experimental.proxy_tensor.make_fx` does this in general. The recorder does what this package needs in a third
of the time: tensors may be fake or real, shapes are numbers, and nodes keep only the layout of each tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx._lazy_graph_module import _make_graph_module, _use_lazy_graph_module
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from placeto.capture.costing.node_costs import DECOMPOSITIONS
from placeto.capture.tracing.dependencies import needed_by
from placeto.capture.tracing.draws import RAN, carry_draws
from placeto.capture.tracing.layouts import ON_COPY, is_on_copy, layouts_of
from placeto.capture.tracing.lifetimes import SOURCE, Lifetimes, carry_over, storage_of
from placeto.capture.tracing.node_labels import Label, Labels
from placeto.capture.tracing.packing import packing_seen
from placeto.capture.tracing.sharing import Sharing
from placeto.capture.tracing.statistics import NORM, STATISTICS, TRAINING, statistics
from placeto.capture.tracing.storages import as_stored
from placeto.errors import CaptureError

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_WRITES_BACK = "writes back"  # key in the meta of nodes that copy into an input what functional ops made of it
_CONTIGUOUS = {aten.masked_fill.Scalar, aten.masked_fill.Tensor}  # pointwise ops that don't keep a layout
_LOST = (
    "a tensor is changed in place that is no parameter, no buffer and no argument, and a placed step would not change "
    "it: register it as a buffer (self.register_buffer), or pass it in and out"
)
_DISTRIBUTED = {"DTensor", "AsyncCollectiveTensor"}
_ASKING = {aten.size.default, aten.stride.default, aten.storage_offset.default}  # ops that return a layout


def record(
    function: Callable[..., Sequence[Any]],
    leaves: Sequence[Any],
    labels: Labels,
    replaced: Mapping[int, str] = MappingProxyType({}),
) -> GraphModule:
    """Run a function, and return the graph of the ops that it runs.

    Every leaf is a placeholder. Every node has ``meta["label"]`` and ``meta["val"]``, in which tensors on "meta" have
    the layouts of the real ones. Nodes whose value is freed while the function runs have ``meta[HELD]``; see
    `placeto.capture.tracing.lifetimes`. The graph has ``meta["tensors"]``, the node of each tensor that still exists,
    ``meta["values"]``, the places of the leaves on which numbers depend that the function has read, and
    ``meta["shared"]``, which modules need tensors of others themselves, and ``meta["unrepeatable"]``, which are given
    tensors that are changed; see `placeto.capture.tracing.sharing`.

    Args:
        function: takes the leaves; returns a sequence of tensors and None.
        leaves: tensors, and other values, which ops get as they are.
        labels: gives each op its label.
        replaced: address of a storage -> why no op may read the tensors in it, for which leaves stand.

    Raises:
        CaptureError: an op reads a tensor that is replaced.
    """
    recorder = _Recorder(labels, replaced)
    for leaf in leaves:
        recorder.add_input(leaf)
    with _own_autocast_cache(), packing_seen(recorder.nodes), recorder:
        outputs = function(*leaves)
    return recorder.finish(outputs)


def mutates(traced: GraphModule) -> bool:
    """Whether an op of a recorded graph changes a tensor that other ops read, but by copies that write inputs back."""
    ops = (node for node in traced.graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return any(
        (_is_mutable(node.target) or _changes_statistics(node)) and _WRITES_BACK not in node.meta for node in ops
    )


def functional(traced: GraphModule, leaves: Sequence[Any]) -> GraphModule:
    """Record a graph again without ops that change tensors in place, apart from the copies that write inputs back.

    Args:
        traced: a graph that `record` returned.
        leaves: the arguments of that `record`, with the values that they had before it.
    """
    labels = Labels()
    replay = _Replay(traced, labels)
    flat = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    retraced = record(torch.func.functionalize(lambda *values: replay.run(*values)), flat, labels)
    retraced.meta |= {key: traced.meta[key] for key in ("values", "shared", "unrepeatable")}
    carry_over(traced, retraced)
    carry_draws(retraced)
    for node in retraced.graph.find_nodes(op="call_function", target=aten.copy.default):
        if _WRITES_BACK in (node.meta[SOURCE] or node).meta:  # the copy isn't needed: the value itself is written back
            _, value = node.args
            node.replace_all_uses_with(cast(Node, value))
            retraced.graph.erase_node(node)
    return retraced


class _Recorder(TorchDispatchMode):
    """While this mode is open, every op that runs becomes a node of its graph."""

    supports_higher_order_operators = True  # so that `__torch_dispatch__` is called for them, and refuses them

    def __init__(self, labels: Labels, replaced: Mapping[int, str]) -> None:
        super().__init__()
        self.labels, self.replaced = labels, replaced
        self.graph = Graph()
        self.root = nn.Module()  # has the constants as buffers
        self.constants = 0
        self.is_fake = False  # whether an input is fake, so that only shapes are traced
        self.stand_ins: Any = WeakTensorKeyDictionary()  # constant on "meta" -> a fake tensor on the cpu
        self.nodes: Any = WeakTensorKeyDictionary()  # tensor -> the node that makes it
        self.lifetimes = Lifetimes()
        self.sharing = labels.sharing = Sharing(self.lifetimes)
        self.inputs: list[tuple[Tensor, Node]] = []
        self.elsewhere: Any = WeakTensorKeyDictionary()  # tensors whose changes functional ops made of new tensors
        self.values: set[Node] = set()  # nodes whose values Python has read

    def add_input(self, value: Any) -> None:
        """Add a placeholder for an argument."""
        node = self.graph.placeholder(f"input_{len(self.graph.nodes)}")
        node.meta |= {"val": layouts_of(value), "label": Label()}
        if isinstance(value, Tensor):
            self.is_fake |= isinstance(value, FakeTensor)
            self.nodes[value] = node
            self.lifetimes.ignore(value, node)
            self.sharing.note_value(value, node)
            self.inputs.append((value, node))

    def finish(self, outputs: Sequence[Any]) -> GraphModule:
        """Write back the inputs whose changes were recorded as functional ops, and return the graph."""
        self.sharing.end(outputs)
        nodes = ((value, self.nodes.get(value)) for value in outputs if isinstance(value, Tensor))
        self.lifetimes.end([value for value, node in nodes if node is not None and node.meta["label"].backward])
        for value, node in self.inputs:
            if value in self.elsewhere:
                copy = self.graph.create_node(
                    "call_function", aten.copy_.default, (node, self.nodes[value]), None, "copy_"
                )
                copy.meta |= {"val": node.meta["val"], "label": Label(), _WRITES_BACK: True}
        self.graph.output([self._argument(value) for value in outputs])
        with _use_lazy_graph_module(True):  # generates the code only if it is read, which is rare
            traced = _make_graph_module(self.root, self.graph)
        traced.meta["tensors"], traced.meta["shared"] = self.nodes, self.sharing.found
        traced.meta["unrepeatable"] = self.sharing.unrepeatable
        places = {node: place for place, node in enumerate(self.graph.find_nodes(op="placeholder"))}
        traced.meta["values"] = {places[node] for node in needed_by(self.values) if node in places}
        return traced

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip torch.compile would take more time than all else that is done for an op

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is _DEVICE:  # autograd calls it twice for each op
            return args[0].fake_device
        if any(kind.__name__ in _DISTRIBUTED for kind in types):
            return NotImplemented  # they call the ops and collectives of their local tensors, which are recorded
        if not isinstance(func, torch._ops.OpOverload):
            raise NotImplementedError(f"higher-order op {func.name()}")
        kwargs = kwargs or {}
        decomposed = self._decomposed(func, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        sources = tuple(map(self._argument, args)), self._argument(kwargs)
        if any(map(_is_constant, _written(func, *sources))):
            raise RuntimeError(_LOST)
        if len(self.stand_ins):
            args, kwargs = tree_map(self._on_cpu, (args, kwargs))
        result = as_stored(func, args, _SHAPES.get(func, func)(*args, **kwargs))
        ran = None if (source := self.labels.source) is None else source.meta.get(RAN)
        if on_copy := is_on_copy(func, ran, args, result):
            result = ran(args[0].clone(), *args[1:], **kwargs)  # type: ignore[misc]
        leaves = result if isinstance(result, list | tuple) else (result,)
        if _is_mutable(func) or any(isinstance(leaf, Tensor) for leaf in leaves):
            node = self._add(func, *sources, result)
            node.meta[ON_COPY] = on_copy
        elif torch.Tag.data_dependent_output in func.tags:
            self.values |= {leaf for leaf in tree_leaves(sources) if isinstance(leaf, Node)}
        return result

    def _decomposed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an op as several ops, each of which is recorded, and return the result; NotImplemented if it has none."""
        if func in DECOMPOSITIONS:
            with self:
                decomposed = DECOMPOSITIONS[func](*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        if not _is_composite(func) or not autograd_would_have_decomposed(func, tree_leaves((args, kwargs))):
            return NotImplemented
        with self:
            return func.decompose(*args, **kwargs)

    def _add(self, func: Any, args: Any, kwargs: Any, result: Any) -> Node:
        """Add a node for an op that has run, and `getitem` nodes if the op returned several tensors."""
        # the argument of lift_fresh is a constant, which later ops must not change
        target = (
            aten.lift_fresh_copy.default
            if func is aten.lift_fresh.default
            else self._functional(func, args, kwargs, result)
        )
        node = self.graph.create_node("call_function", target, args, kwargs, target.overloadpacket.__name__)
        label = self.labels.next([source.meta["label"] for source in node.all_input_nodes])
        source = self.labels.source
        ran = func if source is None else source.meta.get(RAN)
        node.meta |= {"val": layouts_of(result), "label": label, SOURCE: source, RAN: ran}
        self.lifetimes.ran(node)
        self.labels.draws.ran(node)
        self.sharing.ran(node, _written(func, args, kwargs), self.labels.argument_makers)
        changed = _is_mutable(func)
        if isinstance(result, Tensor):
            self.nodes[result] = node
            if changed and not _is_mutable(target):
                self.elsewhere[result] = True
            self.lifetimes.note_value(result, node, changed)
            self.sharing.note_value(result, node)
        elif isinstance(result, list | tuple):
            for number, (part, layout) in enumerate(zip(result, node.meta["val"], strict=True)):
                if isinstance(part, Tensor):
                    self.nodes[part] = item = self.graph.call_function(operator.getitem, (node, number))
                    item.meta |= {"val": layout, "label": label, SOURCE: self.labels.source}
                    self.lifetimes.note_value(part, item, changed)
                    self.sharing.note_value(part, item)
        return node

    def _functional(self, func: Any, args: Any, kwargs: Any, changed: Any) -> Any:
        """Return the functional op for an op that changed a tensor, if no other tensor shares its memory; else the op.

        The ops of dropout, ``ReLU(inplace=True)`` and the counters of batch norms are replaced so. Ops that can't be
        replaced here are left to `functional`, a second pass.
        """
        new = _functional_op(func)
        if new is None or len(args) < _required(new) or not self.lifetimes.alone(changed):
            return func
        if new in _CONTIGUOUS and not changed.is_contiguous():
            return func
        if new is aten.bernoulli.p and args[0].target is not aten.empty_like.default:
            return func  # bernoulli.p draws bits in another order, except where `to_be_run` puts `bernoulli_` back
        numbers = tree_leaves((args[1:], kwargs))
        puts = new is aten.index_put.default  # which takes values of the dtype of the changed tensor only
        if not puts and any(isinstance(number, Node) for number in numbers):
            return func
        with no_dispatch():
            dense = torch.empty_like(changed).stride() == changed.stride()
            keeps_dtype = puts or changed.is_floating_point() or all(type(n) is int for n in numbers)
            return new if dense and keeps_dtype else func

    def _argument(self, value: Any) -> Any:
        """A value as an argument of a node: a node in place of each tensor."""
        if isinstance(value, Tensor):
            node = self.nodes.get(value)
            return self._constant(value) if node is None else node
        if isinstance(value, list | tuple):
            return [self._argument(part) for part in value]
        if isinstance(value, dict):
            return {key: self._argument(part) for key, part in value.items()}
        return value

    def _constant(self, value: Tensor) -> Node:
        if (why := self.replaced.get(storage_of(value)._cdata)) is not None:
            raise CaptureError(why)
        name = f"constant_{self.constants}"
        self.constants += 1
        self.root.register_buffer(name, value)
        node = self.graph.get_attr(name)
        node.meta |= {"val": layouts_of(value), "label": Label()}
        self.nodes[value] = node
        self.lifetimes.ignore(value, node, shared=True)  # the user's module may hold it as well
        self.sharing.note_value(value, node)
        if self.is_fake and value.is_meta and not isinstance(value, FakeTensor):  # made under torch.device("meta")
            self.stand_ins[value] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        return node

    def _on_cpu(self, value: Any) -> Any:
        return self.stand_ins.get(value, value) if isinstance(value, Tensor) else value


class _Replay(Interpreter):
    """Runs a recorded graph again, with its labels."""

    def __init__(self, traced: GraphModule, labels: Labels) -> None:
        super().__init__(traced)
        self.labels = labels

    def run_node(self, node: Node) -> Any:
        self.labels.source = node
        if _changes_statistics(node):
            return aten._native_batch_norm_legit.default(*self.fetch_args_kwargs_from_env(node)[0])
        return super().run_node(node)


def _changes_statistics(node: Node) -> bool:
    """Whether a batch norm, whose schema doesn't say that it changes its statistics, changes what other ops read.

    Statistics that are an input and that only batch norms in training use are left to `statistics.as_values`. All
    others, such as those that an instance norm repeats for each sample, follow from the op that says what it changes.
    """
    changed = statistics(node) if node.target is NORM else []
    return any(stat.op != "placeholder" or any(stat not in statistics(user) for user in stat.users) for stat in changed)


@cache
def _is_composite(func: Any) -> bool:
    """Whether an op has a kernel that only calls other ops, and may be recorded as those."""
    return func.namespace != "prim" and func not in _ASKING and func.has_kernel_for_dispatch_key(_COMPOSITE)


@cache
def _is_mutable(func: Any) -> bool:
    return bool(func._schema.is_mutable)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Node]:
    """The arguments that an op changes, the statistics of a batch norm among them."""
    if func is NORM and args[TRAINING] is True:
        yield from (statistic for statistic in args[STATISTICS] if isinstance(statistic, Node))
    if _is_mutable(func):
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Node))


def _is_constant(node: Node) -> bool:
    """Whether a node is a tensor that was there before the step, or a view of one, and no input of it."""
    while node.target is operator.getitem or getattr(node.target, "is_view", False):
        node = cast(Node, node.args[0])
    return node.op == "get_attr"


@cache
def _functional_op(func: Any) -> Any:
    """The op that returns what a pointwise op writes into its first argument; None if there is no such op."""
    if not _is_mutable(func) or [str(returned.type) for returned in func._schema.returns] != ["Tensor"]:
        return None
    if func is aten.bernoulli_.float:
        return aten.bernoulli.p
    if func is aten.index_put_.default:
        return aten.index_put.default
    packet = getattr(aten, func.overloadpacket.__name__.removesuffix("_"), None)
    overload = getattr(packet, func._overloadname, None)
    if overload is None or torch.Tag.pointwise not in overload.tags:
        return None
    takes, mutable_takes = ([(a.name, str(a.type)) for a in op._schema.arguments] for op in (overload, func))
    return overload if takes == mutable_takes else None  # `pow` of a number takes other arguments than `pow_`


@cache
def _required(func: Any) -> int:
    return sum(not argument.has_default_value() for argument in func._schema.arguments)


def _grouped_mm(a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The products of `aten._grouped_mm`, also of fake tensors that aren't in bfloat16, which torch refuses."""
    product = aten._grouped_mm.default
    if a.dtype is torch.bfloat16 or not isinstance(a, FakeTensor):
        return product(a, b, *args, **kwargs)
    return a.new_empty(product(a.bfloat16(), b.bfloat16(), *args, **kwargs).shape)


_SHAPES: dict[Any, Callable[..., Any]] = {aten._grouped_mm.default: _grouped_mm}  # op -> what is run in its place


@contextmanager
def _own_autocast_cache() -> Iterator[None]:
    """A context in which autocast casts each parameter once, as in eager PyTorch, by an op that is recorded.

    Copies that it has of before would be the output of no recorded op.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
