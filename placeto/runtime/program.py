"""A captured step as straight-line Python: one line an op, each tensor released after its last use.

    v5 = f4(v0, v3)
    del v3

Stamped programs note the time after every line, so that each call's time is the difference of two stamps, and
all of them together are the step. A program of one device among several also has lines that wait for a value of
another device, and lines that put a value into the queue of a device that waits for it:

    v7 = r7()
    v8 = f8(v7)
    s8(v8)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map

from placeto.capture.tracing.dependencies import needed_by
from placeto.capture.tracing.draws import draws
from placeto.capture.tracing.statistics import updates_of
from placeto.runtime.attention import gpu_attention

aten = torch.ops.aten
_LITERALS = (bool, int, float, str, type(None))


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
    def of(cls, traced: GraphModule, device: torch.device | str = "cpu") -> Program:
        """Return the program of a traced graph (`Capture.traced`), without calls that no output and no buffer needs."""
        nodes = list(traced.graph.nodes)
        needed = needed_by([nodes[-1], *(update.value for update in updates_of(traced))])
        inputs = tuple(node for node in nodes if node.op == "placeholder")
        calls = tuple(node for node in nodes if node.op in ("call_function", "get_attr") and node in needed)
        return cls(inputs, calls, nodes[-1].args[0], torch.device(device))

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
        names = {node: f"v{i}" for i, node in enumerate((*self.inputs, *self.calls))}
        constants: dict[str, Any] = {"stamp": stamp}
        lines = [f"def step({', '.join(names[node] for node in self.inputs)}):"]
        lines += ["    s0 = stamp()"] if stamp else []
        for number, (node, dead) in enumerate(zip(self.calls, self._releases(), strict=True), start=1):
            lines.append(f"    {names[node]} = {self._call(node, number, names, constants)}")
            for take, send in enumerate(self.sends.get(node, ())):
                constants[f"s{number}_{take}"] = send
                lines.append(f"    s{number}_{take}({names[node]})")
            lines += [f"    del {', '.join(names[freed] for freed in dead)}"] if dead else []
            lines += [f"    s{number} = stamp()"] if stamp else []
        result = _source(self.outputs, names, constants)
        stamps = ", ".join(f"s{number}" for number in range(len(self.calls) + 1))
        lines.append(f"    return {result}, [{stamps}]" if stamp else f"    return {result}")
        exec(compile("\n".join(lines), "<program>", "exec"), constants)
        return constants.pop("step")  # a function among its own globals would be freed by the garbage collector only

    def node_of_line(self, number: int, stamped: bool) -> Node | None:
        """Return the call in a line of the compiled source, counted from 1; None if the line has no call."""
        line = 2 + stamped
        for node, dead in zip(self.calls, self._releases(), strict=True):
            lines = 1 + len(self.sends.get(node, ()))
            if line <= number < line + lines:
                return node
            line += lines + bool(dead) + stamped
        return None

    def kernel(self, node: Node) -> Callable[..., Any] | None:
        """Return what makes a call on the program's device; None if the host makes it, with copies there and back."""
        target = in_any_layout(node.target)
        if self.device.type == "cpu" or not isinstance(target, torch._ops.OpOverload):
            return target
        key = self.device.type.upper()
        has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key(target.name(), key)
        return target if has_kernel else gpu_attention(node)

    def _call(self, node: Node, number: int, names: dict[Node, str], constants: dict[str, Any]) -> str:
        if node in self.receives:
            constants[f"r{number}"] = self.receives[node]
            return f"r{number}()"
        if node.op == "get_attr":
            constants[f"f{number}"] = attribute(node).to(self.device)
            return f"f{number}"
        if node.target is operator.getitem:
            return f"{names[node.args[0]]}[{node.args[1]!r}]"  # type: ignore[index]
        constants[f"f{number}"] = self.kernel(node) or _on_host(node.target, self.device)
        arguments = [_source(self._placed(argument), names, constants) for argument in node.args]
        named = node.kwargs | ({"generator": self.generator} if self.generator is not None and draws(node) else {})
        arguments += [f"{k}={_source(self._placed(v), names, constants)}" for k, v in named.items()]
        return f"f{number}({', '.join(arguments)})"

    def _placed(self, argument: Any) -> Any:
        """Return an argument; the program's device in place of the one that the trace was made on."""
        return self.device if isinstance(argument, torch.device) else argument

    def _releases(self) -> list[list[Node]]:
        """Return for each call the calls whose values are released after it, as no later call needs them."""
        last: dict[Node, int] = {}
        for position, node in enumerate(self.calls):
            last[node] = position
            if node not in self.receives:
                last |= dict.fromkeys(node.all_input_nodes, position)
        kept: set[Node] = set(self.inputs)
        tree_map(lambda leaf: kept.add(leaf) if isinstance(leaf, Node) else None, self.outputs)
        dead: list[list[Node]] = [[] for _ in self.calls]
        for node, position in last.items():
            if node not in kept:
                dead[position].append(node)
        return dead


def _source(value: Any, names: dict[Node, str], constants: dict[str, Any]) -> str:
    """Return a value as Python source; a value without a literal becomes a constant of the program."""
    if isinstance(value, Node):
        return names[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(_source(item, names, constants) for item in value)}]"
    if isinstance(value, _LITERALS) and repr(value) not in ("inf", "-inf", "nan"):
        return repr(value)
    name = f"c{len(constants)}"
    constants[name] = value
    return name


def in_any_layout(target: Any) -> Any:
    """Return the function that is called for an op: `reshape` in place of `view`.

    A tensor may be laid out in memory in another way than at the capture. Then `reshape` copies, as PyTorch's `flatten`
    does. Programs change nothing in place, so that a copy and a view give the same results.
    """
    return torch.ops.aten.reshape.default if target is torch.ops.aten.view.default else target


def attribute(node: Node) -> Any:
    """Return the object that a `get_attr` node of a traced graph stands for."""
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _on_host(target: Any, device: torch.device) -> Callable[..., Any]:
    """Return a function that makes a call on the host: it copies arguments there, and results back to the device."""

    def moved(values: Any, where: torch.device) -> Any:
        return tree_map(lambda value: value.to(where) if isinstance(value, torch.Tensor) else value, values)

    def call(*arguments: Any, **named: Any) -> Any:
        host = torch.device("cpu")
        return moved(target(*moved(arguments, host), **moved(named, host)), device)

    return call
