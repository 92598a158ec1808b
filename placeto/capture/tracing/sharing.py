"""Which modules need the tensors of other modules themselves, not copies of them, noted while a step is traced.

Tools that run modules on several devices hand a module copies of its arguments, and nothing else. So a module has to be
where a tensor was made that it reads without having it as an argument, or that it changes in place. A tensor from
before the step that is no parameter or buffer, such as a table that was kept in the first step, is on one device: so
modules that read it are together. Lists and mappings are copied wherever a module is: if one is changed later, the
module and the others don't see the same.

A module that is called again for the backward pass, as activation checkpoints do, computes the same if nothing that it
was given has changed since its call, and if it was given all that it reads of others.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.fx import Node
from torch.utils._pytree import tree_flatten

from placeto.capture.inputs.objects import has_attributes, opened
from placeto.capture.tracing.lifetimes import Lifetimes, storage_of
from placeto.problem.graph.module_paths import around, inside, unit_of

Maker = Node | str
"""The node that made the memory of a tensor, or the path of a module that has tensors."""
Makers = frozenset[Node | int]
"""Makers of tensors, or the addresses of those that no op has read yet."""
_MODULE_STATE = frozenset(vars(nn.Module()))  # names of attributes that every module has
_DEPTH = 4  # how many references are followed from an object to a tensor in it


class Sharing:
    """Notes on the forward pass, while its nodes are recorded.

    `found` has the path of a module -> the makers of the tensors that it needs themselves. Of tensors that it changes
    in place these are the ones that are read later outside of its unit, or that are there before the step.

    `receivers` has the path of each module that is given a list, a mapping or an object with attributes -> whether a
    tool would hand it a copy.

    `unrepeatable` has the paths of the modules that are given a tensor which is changed in place in their call or after
    it, or that read a tensor of another module without being given it.
    """

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.found: dict[str, dict[Maker, None]] = {}
        self.receivers: dict[str, bool] = {}
        self.unrepeatable: set[str] = set()
        self._lifetimes = lifetimes
        self._maker: dict[Node, Node] = {}  # of the memory of each node's value
        self._changed: dict[Node, set[str]] = {}  # maker -> modules that have changed its tensor
        self._returned: dict[Node, set[str]] = {}  # maker -> other modules that have returned its tensor
        self._storage: dict[Node, int] = {}  # of a tensor from before the step, the address
        self._reader: dict[Node, str] = {}  # of such a tensor, the first module that reads it as no argument
        self._given: dict[Node | int, set[str]] = {}  # maker -> the modules that were given its tensor
        self._watched: list[tuple[str, Any, Any]] = []  # modules, what they were given, and what it was made of then

    def note_value(self, tensor: Tensor, node: Node) -> None:
        """Note that the value of a node is this tensor, which `Lifetimes` knows."""
        if not node.meta["label"].backward:
            self._maker[node] = self._lifetimes.maker(tensor) or node
        if node.op == "get_attr":
            self._storage[node] = storage_of(tensor)._cdata

    def makers(self, values: Any) -> Makers:
        """The makers of the tensors in arguments that a tool would copy to another device."""
        return self._makers(leaf for leaf in _leaves(values) if isinstance(leaf, Tensor))

    def unmoved(self, module: nn.Module, arguments: Any) -> Makers:
        """The makers of the tensors that a module finds in its attributes, or in objects that no tool looks into."""
        attributes = [value for name, value in vars(module).items() if name not in _MODULE_STATE]
        objects = (leaf for leaf in _leaves(arguments) if not isinstance(leaf, Tensor | nn.Module))
        return self._makers(_within([*attributes, *objects]))

    def ran(self, node: Node, written: Iterable[Node], argument_makers: Makers) -> None:
        """Note that a node has run.

        Args:
            node: a call of an op.
            written: those of its arguments that it has changed.
            argument_makers: the makers of the arguments of the module that is being called.
        """
        label = node.meta["label"]
        if label.backward:
            return
        unit = unit_of(label.module)
        for maker in dict.fromkeys(self._maker.get(source, source) for source in node.all_input_nodes):
            self._read(maker, label.module)
            origin = maker.meta["label"]
            within = inside(origin.module, unit) or any(inside(caller, unit) for caller in origin.callers)
            if maker.op == "get_attr":
                self._read_constant(maker, label.module, argument_makers)
            elif label.module and not within and maker not in argument_makers:
                self._need(label.module, maker)
                if maker.op == "call_function":
                    self.unrepeatable |= {path for path in around(label.module) if not inside(origin.module, path)}
        for maker in dict.fromkeys(self._maker.get(source, source) for source in written):
            self._changed.setdefault(maker, set()).add(label.module)
            self.unrepeatable |= self._given.get(maker, set())
            for module in self._returned.get(maker, ()):
                self._need(module, maker)
            if maker.op == "placeholder":
                self._read(maker, "")

    def called(self, path: str, arguments: Any, names: Mapping[nn.Module, list[str]], hooked: bool) -> None:
        """Note that a module is called with these arguments; tools move modules among them to its device.

        Args:
            path: of the module.
            arguments: those of the call.
            names: the paths of all modules.
            hooked: whether a tool hands the module its arguments.
        """
        for leaf in _leaves(arguments):
            for part in leaf.modules() if isinstance(leaf, nn.Module) else ():
                if part in names and any(True for _ in part.parameters(recurse=False)):
                    self._need(path, names[part][0])
        for maker in self.makers(arguments):
            self._given.setdefault(maker, set()).add(path)
        if _may_change(arguments):
            self.receivers[path] = self.receivers.get(path, False) or (hooked and _is_copied(arguments))

    def watch(self, path: str, arguments: Any) -> None:
        """Keep what a module is given, until it is known whether it `was_changed`."""
        if _may_change(arguments):
            self._watched.append((path, arguments, _parts(arguments)))

    def was_changed(self) -> set[str]:
        """The paths of the modules that were given something which has changed since; forgets what they were given."""
        watched, self._watched = self._watched, []
        return {path for path, arguments, parts in watched if not _same(parts, _parts(arguments))}

    def returned(self, path: str, values: Any) -> None:
        """Note that a module has returned these values."""
        for maker in self.makers(values) if path else ():
            if isinstance(maker, Node) and not inside(maker.meta["label"].module, unit_of(path)):
                self._returned.setdefault(maker, set()).add(path)

    def end(self, outputs: Any) -> None:
        """Note that the step returns these values."""
        for maker in self.makers(outputs):
            if isinstance(maker, Node):
                self._read(maker, "")

    def _read(self, maker: Node, reader: str) -> None:
        for module in self._changed.get(maker, ()):
            if not inside(reader, unit_of(module)):
                self._need(module, maker)

    def _read_constant(self, maker: Node, module: str, argument_makers: Makers) -> None:
        """Note that a module reads a tensor from before the step; one of no dimension may meet those of any device."""
        if maker.meta["val"].dim() == 0 or not argument_makers.isdisjoint((maker, self._storage[maker])):
            return
        first = self._reader.setdefault(maker, module)
        if unit_of(first) != unit_of(module):
            self._need(*((module, first) if module else (first, module)))

    def _makers(self, tensors: Iterable[Tensor]) -> Makers:
        return frozenset(self._lifetimes.maker(tensor) or storage_of(tensor)._cdata for tensor in tensors)

    def _need(self, module: str, maker: Maker) -> None:
        self.found.setdefault(module, {})[maker] = None


def _leaves(values: Any) -> Iterator[Any]:
    """What is in lists, tuples and mappings, into which tools look for what they move, as accelerate does."""
    if isinstance(values, list | tuple | Mapping):
        for part in values.values() if isinstance(values, Mapping) else values:
            yield from _leaves(part)
    else:
        yield values


def handed_over(values: Any) -> Any:
    """Arguments as a module gets them from a tool that moves them, as accelerate does; tensors are where they were."""
    if isinstance(values, Tensor | nn.Module):
        return values
    if hasattr(type(values), "to"):
        return values.to("cpu")
    if isinstance(values, Mapping):
        return type(values)({key: handed_over(part) for key, part in values.items()})  # type: ignore[call-arg]
    if isinstance(values, list | tuple):
        parts = [handed_over(part) for part in values]
        return type(values)(*parts) if hasattr(values, "_fields") else type(values)(parts)
    return values


def _is_copied(values: Any) -> bool:
    """Whether a tool hands over a copy of something in arguments that may change: a list, a mapping, an object."""
    if isinstance(values, Tensor | nn.Module):
        return False
    changes = isinstance(values, list | Mapping) or hasattr(type(values), "to")
    return changes or (isinstance(values, tuple) and any(map(_is_copied, values)))


def _may_change(values: Any) -> bool:
    """Whether arguments have something that may change and is no tensor: a list, a mapping, an object."""
    if isinstance(values, tuple):
        return any(map(_may_change, values))
    return isinstance(values, list | Mapping) or has_attributes(values)


def _parts(values: Any) -> tuple[list[Any], Any]:
    """What is in lists, mappings and objects, at any depth, and how it is nested."""
    return tree_flatten(opened(values, containers=True))


def _same(first: tuple[list[Any], Any], second: tuple[list[Any], Any]) -> bool:
    return first[1] == second[1] and all(one is other for one, other in zip(first[0], second[0], strict=True))


def _within(values: list[Any]) -> Iterator[Tensor]:
    """The tensors in objects, but not those of modules in them."""
    seen = set[int]()
    for _ in range(_DEPTH):
        values = [value for value in values if id(value) not in seen]
        yield from (value for value in values if isinstance(value, Tensor))
        opaque = Tensor | nn.Module | type | ModuleType | FunctionType | MethodType
        values = [value for value in values if gc.is_tracked(value) and not isinstance(value, opaque)]
        seen.update(map(id, values))
        values = gc.get_referents(*values)
