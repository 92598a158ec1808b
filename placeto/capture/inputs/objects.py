"""Arguments and outputs that are objects holding tensors, such as caches and dataclasses.

`opened` puts an `Opened`, which is a node of pytrees, in the place of each object: the object's tensors are leaves,
as those of a list are. `closed` turns each `Opened` into an object again: a copy, or the object that was opened.
"""

from __future__ import annotations

import dis
import enum
import functools
import logging
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import (
    SUPPORTED_NODES,
    Context,
    register_pytree_node,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

_DEEPEST = 6  # the greatest depth of objects within objects that are opened
_BLANK = (dict, list, types.SimpleNamespace, object)  # their `__new__` makes empty objects of subclasses
_CLOSED = (  # kinds of objects that are never opened
    Tensor,
    nn.Module,
    type,
    enum.Enum,
    BaseException,
    logging.Logger,
    functools.partial,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    torch.Generator,
)

Objects = dict[int, Any]
"""The objects that were opened, by number."""


class _Item(NamedTuple):
    """Key of an item in a list, a dict or a subclass of one; the key of an attribute is the attribute's name."""

    key: Any


class Opened:
    """What an object holds, by key; where the object occurs `again` in a nest, just its number."""

    def __init__(self, kind: type, number: int, keys: tuple[Any, ...], values: list[Any], again: bool = False) -> None:
        self.kind, self.number, self.keys, self.values, self.again = kind, number, keys, values, again


def _flatten(value: Opened) -> tuple[list[Any], Context]:
    return value.values, (value.kind, value.number, value.keys, value.again)


def _unflatten(values: Any, context: Context) -> Opened:
    kind, number, keys, again = context
    return Opened(kind, number, keys, list(values), again)


register_pytree_node(Opened, _flatten, _unflatten)


def opened(value: Any, objects: Objects | None = None, every: bool = True, containers: bool = False) -> Any:
    """A nest with an `Opened` in place of each object with attributes.

    Args:
        value: a nest.
        objects: the objects that are opened are added to it; those that it has already keep their numbers.
        every: open all objects; if not, only those that hold tensors, or that `objects` has already.
        containers: open lists and dicts as well.
    """
    by_number = {} if objects is None else objects
    numbers = {id(known): number for number, known in by_number.items()}
    entered: set[int] = set()

    def is_opened(part: Any) -> bool:
        if containers and type(part) in (list, dict):
            return every or id(part) in numbers
        return has_attributes(part) and (every or id(part) in numbers or holds_tensors(part))

    def enter(part: Any, depth: int) -> Any:
        if depth > _DEEPEST or not is_opened(part):
            return part
        number = numbers.setdefault(id(part), len(numbers))
        by_number[number] = part
        if number in entered:
            return Opened(type(part), number, (), [], again=True)
        entered.add(number)
        inside = _inside(part)
        values = [tree_map(lambda one: enter(one, depth + 1), value, is_leaf=is_opened) for value in inside.values()]
        return Opened(type(part), number, tuple(inside), values)

    return tree_map(lambda part: enter(part, 0), value, is_leaf=is_opened)


def closed(value: Any, objects: Objects | None = None) -> Any:
    """A nest with an object in place of each `Opened`.

    Args:
        value: a nest.
        objects: an object in it is filled in place with what the `Opened` of its number holds. For any other number,
            and for named tuples, a new object is made and added.
    """
    by_number = {} if objects is None else objects

    def leave(part: Any) -> Any:
        if not isinstance(part, Opened):
            return part
        if issubclass(part.kind, tuple) and not part.again:
            by_number[part.number] = tuple.__new__(part.kind, [_closed_in(leave, inside) for inside in part.values])
            return by_number[part.number]
        if part.number not in by_number:
            by_number[part.number] = _blank(part.kind)
        thing = by_number[part.number]
        if not part.again:
            _fill(thing, part.keys, [_closed_in(leave, inside) for inside in part.values])
        return thing

    return _closed_in(leave, value)


class Kept:
    """Keeps the form of what a step returns, and of what it makes of the objects, lists and dicts that it is given."""

    def __init__(self) -> None:
        self._objects: Objects = {}
        self._before: tuple[list[Any], Any] = [], None
        self._leaves: list[Any] = []
        self._spec: Any = None
        self._tensors: list[int] = []  # indices of the tensors among the leaves
        self.changed = False  # whether the step changed its arguments

    def begin(self, arguments: Any) -> None:
        """Note the arguments before the step."""
        self._objects = {}
        self._before = tree_flatten(opened(arguments, self._objects, containers=True))

    def finish(self, arguments: Any, output: Any) -> list[Tensor]:
        """Note what the step did; return the tensors of the arguments, if it changed any, then of the output."""
        leaves, spec = tree_flatten(opened(arguments, dict(self._objects), containers=True))
        before, as_it_was = self._before
        self.changed = spec != as_it_was or not all(
            value is leaf_before or (not isinstance(value, Tensor) and value == leaf_before)
            for value, leaf_before in zip(leaves, before, strict=True)
        )
        both = arguments if self.changed else (), output
        leaves, self._spec = tree_flatten(opened(both, dict(self._objects), every=False, containers=True))
        self._tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return [leaves[place] for place in self._tensors]

    @property
    def values(self) -> list[Any]:
        """Numbers, strings and shapes among what the step returned, which tensors of other values don't change."""
        return list(filter(is_number, self._leaves))

    def rebuild(self, tensors: Sequence[Any], arguments: Any = ()) -> Any:
        """Return the output with these tensors, and change the objects among the arguments as the step did."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._tensors, tensors, strict=True):
            leaves[place] = tensor
        objects: Objects = {}
        opened(arguments, objects, containers=True)
        return closed(tree_unflatten(leaves, self._spec), objects)[1]


def is_number(value: Any) -> bool:
    """Whether a value may say something of a size: a number, a string or a shape."""
    return isinstance(value, int | float | complex | str | torch.Size)


def holds_tensors(value: Any) -> bool:
    """Whether a tensor is in a nest, or in an object in it."""
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(opened(value)))


def hides_tensors(value: Any, _known: set[int] | None = None) -> bool:
    """Whether a nest has an object that can't be opened and has tensors, among its attributes or in a set."""
    known = set() if _known is None else _known
    for leaf in tree_leaves(opened(value)):
        if isinstance(leaf, Tensor) and _known is not None:
            return True
        if isinstance(leaf, _CLOSED) or id(leaf) in known:
            continue
        known.add(id(leaf))
        inside = list(leaf) if isinstance(leaf, set | frozenset) else list(getattr(leaf, "__dict__", {}).values())
        if inside and hides_tensors(inside, known):
            return True
    return False


def has_attributes(thing: Any) -> bool:
    """Whether an object can be opened: it holds values by name, as attributes or slots, and can be copied by these."""
    kind = type(thing)
    if isinstance(thing, _CLOSED) or kind.__module__ in ("builtins", "numpy", "torch", "pathlib", "datetime"):
        return False
    if issubclass(kind, tuple):  # pytrees know named tuples, but none of their subclasses
        return hasattr(kind, "_fields") and tuple not in kind.__bases__
    if kind in SUPPORTED_NODES or not any(kind.__new__ is base.__new__ for base in _BLANK):
        return False  # pytrees have it as a node, or its class has a `__new__` of its own
    return hasattr(thing, "__dict__") or any("__slots__" in vars(base) for base in kind.__mro__)


def variables_of(function: types.FunctionType) -> dict[str, Any]:
    """The variables around a function that it reads, by name: its closure, and globals, also of functions within it."""
    names, cells = function.__globals__, zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
    return closure | {name: names[name] for name in _globals(function.__code__) if name in names}


def _globals(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant)


def _inside(thing: Any) -> dict[Any, Any]:
    """What an object holds, by name or key: its ``__dict__``, slots and, of a list, dict or subclass of one, items."""
    if isinstance(thing, tuple):
        return dict(zip(thing._fields, thing, strict=True))  # type: ignore[attr-defined]
    contents: dict[Any, Any] = dict(getattr(thing, "__dict__", {}))
    if isinstance(thing, dict | list):
        items = dict.items(thing) if isinstance(thing, dict) else enumerate(list.__iter__(thing))
        contents |= {_Item(key): value for key, value in items}
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                contents[name] = getattr(thing, name)
    return contents


def _blank(kind: type) -> Any:
    """A new object of a class, without attributes and items."""
    return next(base for base in _BLANK if issubclass(kind, base)).__new__(kind)


def _fill(thing: Any, keys: Sequence[Any], values: Sequence[Any]) -> None:
    """Set what an object holds, and remove all else that it held."""
    contents = dict(zip(keys, values, strict=True))
    items = {key.key: contents.pop(key) for key in keys if isinstance(key, _Item)}
    if isinstance(thing, dict):
        dict.clear(thing)
        dict.update(thing, items)
    elif isinstance(thing, list):
        list.__setitem__(thing, slice(None), list(items.values()))
    for key in set(_inside(thing)) - set(contents):
        if not isinstance(key, _Item):
            object.__delattr__(thing, key)
    for key, value in contents.items():
        object.__setattr__(thing, key, value)


def _closed_in(leave: Any, value: Any) -> Any:
    return tree_map(leave, value, is_leaf=lambda part: isinstance(part, Opened))
