"""A captured step as a program for one device: the calls that it makes there, in order.

As Python it is a function of straight-line code, which `torch.fx` writes: one line a call, each tensor released after
its last use. Stamped programs note the time after every call, so that each call's time is the difference of two stamps,
and all of them together are the step. A program of one device among several also has lines that wait for a value of
another device, and lines that put a value into the queue of a device that waits for it:

    mm = receive()
    relu = torch.ops.aten.relu.default(mm);  mm = None
    send = send(relu)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import FrameType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils._pytree import tree_leaves, tree_map

from placeto.capture.tracing.dependencies import needed_by
from placeto.capture.tracing.draws import draws
from placeto.capture.tracing.statistics import updates_of
from placeto.runtime.attention import gpu_attention

aten = torch.ops.aten
_FILE = "<program>"  # the name of compiled code in tracebacks


@dataclass(frozen=True, eq=False)
class Program:
    """The calls of a traced graph that its outputs need, on one device.

    A program takes the values of all placeholders and returns the outputs. Its calls are in the order of the trace.
    """

    inputs: tuple[Node, ...]
    calls: tuple[Node, ...]
    outputs: Any
    device: torch.device
    receives: Mapping[Node, Callable[[], Any]] = field(default_factory=dict)  # by call: waits for its value
    sends: Mapping[Node, Sequence[Callable[[Any], Any]]] = field(default_factory=dict)  # by call: take its value too
    generator: torch.Generator | None = None  # for random numbers that are drawn here; None = torch's own

    @classmethod
    def of(
        cls, traced: GraphModule, device: torch.device | str = "cpu", outputs: Sequence[Node] | None = None
    ) -> Program:
        """Return the program of a traced graph (`Capture.traced`), with the calls that outputs need.

        Without `outputs`, these are those of the graph, and the program also makes what buffers become.
        """
        *nodes, end = traced.graph.nodes
        needed = needed_by([end, *(update.value for update in updates_of(traced))] if outputs is None else outputs)
        inputs = tuple(node for node in nodes if node.op == "placeholder")
        calls = tuple(node for node in nodes if node.op in ("call_function", "get_attr") and node in needed)
        return cls(inputs, calls, end.args[0] if outputs is None else outputs, torch.device(device))

    @cached_property
    def reads(self) -> frozenset[Node]:
        """The placeholders whose values calls and outputs need."""
        used = {node for call in self.calls if call not in self.receives for node in call.all_input_nodes}
        return frozenset(self.inputs) & (used | {leaf for leaf in tree_leaves(self.outputs) if isinstance(leaf, Node)})

    def moved(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the values of all placeholders; tensors that the program reads are moved to its device."""
        return [
            leaf.to(self.device) if node in self.reads and isinstance(leaf, torch.Tensor) else leaf
            for node, leaf in zip(self.inputs, leaves, strict=True)
        ]

    def compile(self, stamp: Callable[[], Any] | None = None) -> Callable[..., Any]:
        """Return the program as a function of its inputs.

        Args:
            stamp: called before the first call and after each; the function then returns (outputs, stamps).
        """
        graph, functions = Graph(), dict[Any, Callable[..., Any]]()

        def call(target: Any, arguments: Any = (), named: Any = None, name: str | None = None) -> Node:
            """Add a call. In the graph, which only the garbage collector frees, others stand for functions of ours."""

            def stand_in() -> None: ...

            is_of_torch = target is operator.getitem or isinstance(target, torch._ops.OpOverload)
            if not is_of_torch:
                functions[stand_in] = target
            arguments, named = map_arg((arguments, named or {}), copies.__getitem__)
            return graph.create_node("call_function", target if is_of_torch else stand_in, arguments, named, name)

        copies = {node: graph.placeholder(node.name) for node in self.inputs}
        made_for: dict[str, Node] = {}  # name of a node of the graph -> the call that it is, or whose value it sends
        stamps = [call(stamp)] if stamp else []
        for node in self.calls:
            copies[node] = call(*self._call(node), node.name)
            sent = [call(send, (node,)) for send in self.sends.get(node, ())]
            made_for |= dict.fromkeys((copies[node].name, *(each.name for each in sent)), node)
            stamps += [call(stamp)] if stamp else []
        outputs = map_arg(self.outputs, copies.__getitem__)
        graph.output((outputs, stamps) if stamp else outputs)
        code = graph.python_code("_")
        names = {name: functions.get(value, value) for name, value in code.globals.items()}
        names |= {"nodes": made_for, "lines": code.src.splitlines()}  # for `node_at`
        exec(compile(code.src, _FILE, "exec"), names)
        # a function among its own globals would be freed by the garbage collector only
        return partial(names.pop("forward"), None)

    def kernel(self, node: Node) -> Callable[..., Any] | None:
        """Return what makes a call on the program's device; None if the host makes it, with copies there and back."""
        target = in_any_layout(node.target)
        if self.device.type == "cpu" or not isinstance(target, torch._ops.OpOverload):
            return target
        key = self.device.type.upper()
        has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key(target.name(), key)
        return target if has_kernel else gpu_attention(node)

    def _call(self, node: Node) -> tuple[Any, Any, Any]:
        """Return function and arguments of a call as it is made on the program's device."""
        target, arguments, named = node.target, node.args, node.kwargs
        if node in self.receives:
            return self.receives[node], (), {}
        if node.op == "get_attr":
            value = attribute(node).to(self.device)
            return lambda: value, (), {}
        if target is not operator.getitem:
            target = self.kernel(node) or _on_host(target, self.device)
            if self.generator is not None and draws(node):
                target = partial(target, generator=self.generator)
                named = {name: value for name, value in named.items() if name != "generator"}  # it has None
        arguments, named = map_aggregate(
            (arguments, named), lambda each: self.device if isinstance(each, torch.device) else each
        )
        return target, arguments, named


def node_at(frame: FrameType, line: int) -> Node | None:
    """Return the call in a line of a compiled program; None in other code, and in lines without a call."""
    if frame.f_code.co_filename != _FILE:
        return None
    name = frame.f_globals["lines"][line - 1].partition("=")[0].strip()
    return frame.f_globals["nodes"].get(name)


def in_any_layout(target: Any) -> Any:
    """Return the function that is called for an op: `reshape` in place of `view`.

    A tensor may be laid out in memory in another way than at the capture. Then `reshape` copies, as PyTorch's `flatten`
    does. Programs change nothing in place, so that a copy and a view give the same results.
    """
    return torch.ops.aten.reshape.default if target is torch.ops.aten.view.default else target


def attribute(node: Node) -> Any:
    """Return the object that a `get_attr` node of a traced graph stands for."""
    return getattr(node.graph.owning_module, str(node.target))


def _on_host(target: Any, device: torch.device) -> Callable[..., Any]:
    """Return a function that makes a call on the host: it copies arguments there, and results back to the device."""

    def moved(values: Any, where: torch.device) -> Any:
        return tree_map(lambda value: value.to(where) if isinstance(value, torch.Tensor) else value, values)

    def call(*arguments: Any, **named: Any) -> Any:
        host = torch.device("cpu")
        return moved(target(*moved(arguments, host), **moved(named, host)), device)

    return call
