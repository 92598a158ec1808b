"""Programs for torch's graph interpreter, which runs a step without Python.

Python runs one thread at a time: where ops are short, two cores that run Python programs wait for each other, and each
call takes some microseconds of Python. The interpreter calls the same kernels in the same order, releases a tensor
after its last use too, and needs Python only where a value goes to another device.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_flatten, tree_unflatten

from placeto.runtime.program import Program, attribute, in_any_layout

_ENDS: WeakValueDictionary[int, Callable[..., Any]] = WeakValueDictionary()
"""Functions that receive or send the values of other devices, by the number that stands for each in the graph.

Their programs keep them: what is kept here would keep devices, and with them whole steps, for ever.
"""
_NUMBERS = count()
_LIBRARY = torch.library.Library("placeto", "DEF")
_LIBRARY.define("give(Tensor(a!) value, int end) -> ()")  # declared to change the value, so that it is never left out
_LIBRARY.define("take(int end) -> Tensor")
_LIBRARY.impl("give", lambda value, end: _ENDS[end](value) and None, "CompositeExplicitAutograd")
_LIBRARY.impl("take", lambda end: _ENDS[end](), "CompositeExplicitAutograd")

_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.strided: 0}


class NotInterpreted(ValueError):
    """A program that the interpreter can't run: Python runs it."""


class Interpreted:
    """A program for the interpreter; it takes the values of all placeholders, and returns the outputs.

    Args:
        program: a program for the CPU.
        timed: return (outputs, times). The times are nanoseconds before the first call and after each call, without
            the time that a time stamp takes.

    Raises:
        NotInterpreted: a call is of no op of torch, or has an argument that the interpreter doesn't take.
    """

    def __init__(self, program: Program, timed: bool = False) -> None:
        if program.device.type != "cpu":
            raise NotInterpreted("on a GPU calls are launched")
        self.program, self.timed = program, timed
        graph = _Graph(program, timed)
        self._inputs, self._constants = graph.inputs, graph.attributes
        self._leaves, self._spec = graph.leaves, graph.spec
        self._function = torch._C._create_function_from_graph("step", graph.graph)

    def __call__(self, *values: Any) -> Any:
        """Run the program. If an op fails, and no other device sends values, Python runs it again to name the op."""
        try:
            with torch.no_grad(), torch.jit.optimized_execution(False):
                results = self._function(*(values[i] for i in self._inputs), *self._constants)
        except RuntimeError:
            if self.program.receives:
                raise
            return self.program.compile(time.perf_counter_ns if self.timed else None)(*values)  # raises the op's error
        where = iter(results)
        outputs = tree_unflatten([next(where) if isinstance(leaf, Node) else leaf for leaf in self._leaves], self._spec)
        if not self.timed:
            return outputs
        times = np.array([at - number * _note_ns() for number, at in enumerate(where)])
        return outputs, np.maximum.accumulate(times).tolist()


@cache
def _note_ns() -> int:
    """Return the nanoseconds that a time stamp of the interpreter takes: about 1,000, as long as a small op."""
    graph = torch._C.Graph()
    noted = [_time(graph) for _ in range(300)]
    graph.registerOutput(_tuple(graph, noted))
    function = torch._C._create_function_from_graph("times", graph)
    with torch.jit.optimized_execution(False):
        return int(np.median([np.diff(function()) for _ in range(5)]))


def executable(program: Program, stamp: Callable[[], Any] | None = None) -> Callable[..., Any]:
    """Return a program as a function, of the interpreter if it can run it; see `Program.compile` for stamps."""
    try:
        return Interpreted(program, stamp is not None)
    except NotInterpreted:
        return program.compile(stamp)


class _Graph:
    """A program as a graph of the interpreter."""

    def __init__(self, program: Program, timed: bool) -> None:
        self.program = program
        self.graph: Any = torch._C.Graph()
        self.values: dict[Node, Any] = {}  # value of each node; a list if the node has several
        self.known: dict[tuple[str, str], Any] = {}
        self.attributes: list[Any] = []
        self.inputs = self._inputs()
        for node in program.calls:
            if node.op == "get_attr" and node not in program.receives:
                self.values[node] = self.graph.addInput()
                self.attributes.append(attribute(node).to(program.device))
        times = [_time(self.graph)] if timed else []
        for node in program.calls:
            self._call(node)
            for send in program.sends.get(node, ()):
                self._insert("placeto::give", [self._tensor(node), self._end(send)], 0)
            times += [_time(self.graph)] if timed else []
        self.leaves, self.spec = tree_flatten(program.outputs)
        results = [self._tensor(leaf) for leaf in self.leaves if isinstance(leaf, Node)] + times
        self.graph.registerOutput(_tuple(self.graph, results))

    def _inputs(self) -> list[int]:
        """Add an input for each placeholder that the program reads; return their places among all placeholders."""
        places = []
        for place, node in enumerate(self.program.inputs):
            if node in self.program.reads:
                if not isinstance(node.meta.get("val"), Tensor):
                    raise NotInterpreted(f"{node.name} is no tensor")
                self.values[node] = self.graph.addInput()
                places.append(place)
        return places

    def _call(self, node: Node) -> None:
        if node in self.program.receives:
            self.values[node] = self._insert("placeto::take", [self._end(self.program.receives[node])], 1).output()
        elif node.target is operator.getitem:
            source, index = node.args
            values = self.values[source]  # type: ignore[index]
            if not isinstance(values, list):
                raise NotInterpreted(f"{node.name} indexes a value of another device")
            self.values[node] = values[index]  # type: ignore[index]
        elif node.op != "get_attr":
            self._op(node)

    def _op(self, node: Node) -> None:
        target = in_any_layout(node.target)
        if not isinstance(target, torch._ops.OpOverload):
            raise NotInterpreted(f"{node.name} calls {target}")
        schema = target._schema
        values = []
        for place, argument in enumerate(schema.arguments):
            if argument.name == "generator" and self.program.generator is not None:
                values.append(self.graph.insertConstant(self.program.generator))
                continue
            if argument.name in node.kwargs:
                value: Any = node.kwargs[argument.name]
            elif place < len(node.args) and not argument.kwarg_only:
                value = node.args[place]
            else:
                value = argument.default_value
            values.append(self._value(value, argument.type, getattr(argument, "N", None)))
        call = self._insert(schema.name, values, len(schema.returns))
        outputs = list(call.outputs())
        for output, returned in zip(outputs, schema.returns, strict=True):
            output.setType(returned.type)
        if call.schema() == "(no schema)":
            raise NotInterpreted(f"the interpreter has no {target} of these arguments")
        if len(outputs) == 1 and schema.returns[0].type.kind() == "ListType":
            unpacked = self._insert("prim::ListUnpack", outputs, len(node.meta["val"]))
            self.values[node] = list(unpacked.outputs())
        else:
            self.values[node] = outputs[0] if len(outputs) == 1 else outputs

    def _value(self, value: Any, kind: Any, length: int | None = None) -> Any:
        """Return a value of the graph for an argument of an op, converted to the argument's type `kind`."""
        if isinstance(value, Node):
            return self._tensor(value)
        name = kind.kind()
        if name == "OptionalType" and value is not None:
            return self._value(value, kind.getElementType(), length)
        if name == "ListType" and value is not None:
            element = kind.getElementType()
            items = value if isinstance(value, list | tuple) else [value] * (length or 1)
            joined = self._insert("prim::ListConstruct", [self._value(item, element) for item in items], 1).output()
            joined.setType(torch._C.ListType(torch._C.IntType.get() if element.kind() == "SymIntType" else element))
            return joined
        if isinstance(value, torch.device):
            value = self.program.device
        elif name == "FloatType" and isinstance(value, int):
            value = float(value)
        elif isinstance(value, torch.memory_format | torch.layout):
            value = _FORMATS.get(value, value)
        return self._constant(value)

    def _constant(self, value: Any) -> Any:
        key = type(value).__name__, repr(value)
        if key not in self.known:
            try:
                self.known[key] = self.graph.insertConstant(value)
            except RuntimeError as problem:
                raise NotInterpreted(f"{value!r} is no constant of the interpreter") from problem
        return self.known[key]

    def _tensor(self, node: Node) -> Any:
        value = self.values[node]
        if isinstance(value, list):
            raise NotInterpreted(f"{node.name} is several tensors")
        return value

    def _end(self, function: Callable[..., Any]) -> Any:
        number = next(_NUMBERS)
        _ENDS[number] = function
        return self._constant(number)

    def _insert(self, name: str, values: Sequence[Any], outputs: int) -> Any:
        return self.graph.insertNode(self.graph.create(name, list(values), outputs))


def _time(graph: Any) -> Any:
    """Insert a time stamp behind all that is in a graph so far; return its value."""
    value = graph.insertNode(graph.create("prim::TimePoint", [], 1)).output()
    value.setType(torch._C.IntType.get())
    return value


def _tuple(graph: Any, values: Sequence[Any]) -> Any:
    output = graph.insertNode(graph.create("prim::TupleConstruct", list(values), 1)).output()
    output.setType(torch._C.TupleType([value.type() for value in values]))
    return output
