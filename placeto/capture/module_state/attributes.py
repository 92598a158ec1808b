"""What a module holds beside its parameters: attributes, and what is in its lists, dicts and objects.

A step may change some of it while it is traced, and users change some of it afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from operator import is_
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from placeto.capture.inputs.objects import has_attributes, variables_of

_DEEPEST = 3  # containers within containers of a module
_LARGEST = 10_000  # the most items of a container whose items are kept
_OF_TORCH = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_WEIGHTS = ("_flat_weights", "_flat_weight_refs")  # lists of its weights that a recurrent layer of torch makes anew
_ABSENT = object()
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def named(path: str, part: nn.Module) -> str:
    """A phrase for a module in a message, from its path in a `Whole`."""
    short = path.removeprefix("module").removeprefix(".")
    return f"module {short!r} ({type(part).__name__})" if short else "the module"


def attribute(where: str, key: str) -> str:
    """A phrase for a changed attribute in a message, from the place and the name that `Snapshot.changes` yields."""
    module, _, inside = where.partition(", .")
    return f".{inside or key} of {module}"


class Snapshot:
    """The state of a module, of its submodules and of what they hold, as it was when this was made.

    Args:
        module: the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._kept: list[tuple[str, Any, Any]] = []  # where, container, a shallow copy of it
        self._seen: set[int] = set()
        self._registered: set[int] = set()  # dicts of parameters and of buffers
        self._derived: set[tuple[int, str]] = set()  # attributes that follow from parameters
        for path, part in module.named_modules():
            if isinstance(part, nn.RNNBase):
                self._derived |= {(id(vars(part)), key) for key in _WEIGHTS}
            self._seen.add(id(vars(part)))
            self._registered |= {id(part._parameters), id(part._buffers)}
            self._keep(named(path, part), vars(part), 0)

    def changes(self, tensors: bool = True) -> Iterator[tuple[str, Any, str]]:
        """Yield each attribute or item that is other than it was: its place for a message, its container and its name.

        Args:
            tensors: whether a parameter or buffer has changed if it is another tensor of the same name.
        """
        return ((where, container, key) for where, container, key, _, _ in self._differences(tensors))

    def is_alike(self) -> bool:
        """Whether all is as it was, but that tensors may be others of the same layout."""
        return all(_alike(now, was) for *_, now, was in self._differences(tensors=True))

    def _differences(self, tensors: bool) -> Iterator[tuple[str, Any, str, Any, Any]]:
        """Yield what `changes` yields, with the value of now and the one that was, or `_ABSENT`."""
        for where, container, copy in self._kept:
            if not tensors and id(container) in self._registered and container.keys() == copy.keys():
                continue
            if _unchanged(container, copy):
                continue
            if not isinstance(container, dict):
                yield where, container, where, container, copy
                continue
            for key in [*copy, *(key for key in container if key not in copy)]:
                known = key in copy and key in container and _same(container[key], copy[key])
                if not known and (id(container), key) not in self._derived:
                    yield where, container, str(key), container.get(key, _ABSENT), copy.get(key, _ABSENT)

    def restore(self, only: Container[tuple[int, str]] | None = None) -> None:
        """Put everything back as it was, or only the given attributes: pairs of the container's `id` and the name."""
        for where, container, copy in self._kept:
            if _unchanged(container, copy):
                continue
            if only is not None and isinstance(container, dict):
                for key in {*copy, *container}:
                    if (id(container), str(key)) in only:
                        container.pop(key, None)
                        container.update({key: copy[key]} if key in copy else {})
                continue
            if only is not None and (id(container), where) not in only:
                continue
            container.clear()
            if isinstance(container, dict | set):
                container.update(copy)
            else:
                container.extend(copy)

    def tensors(self) -> list[Tensor]:
        """The tensors that the kept containers hold, parameters and buffers among them."""
        parts = (copy.values() if isinstance(copy, dict) else copy for _, _, copy in self._kept)
        return [part for container in parts for part in container if isinstance(part, Tensor)]

    def _keep(self, where: str, container: Any, depth: int) -> None:
        copy = container.copy()
        self._kept.append((where, container, copy))
        items = copy.items() if isinstance(copy, dict) else ((None, part) for part in copy)
        for key, part in items:
            if key in _OF_TORCH and depth == 0:
                self._seen.add(id(part))
                self._kept.append((where, part, part.copy()))
                continue
            if key in _HOOKS and depth == 0:
                for name, held in (pair for hook in part.values() for pair in _held(hook)):
                    self._enter(f"a hook of {where}, .{name}", held, 1)
            if depth < _DEEPEST:
                self._enter(f"{where}, .{key}" if depth == 0 else where, part, depth + 1)

    def _enter(self, where: str, part: Any, depth: int) -> None:
        """Keep what a container or an object holds."""
        inside = part if type(part) in (dict, list, set, deque) or isinstance(part, dict) else None
        if inside is None and not isinstance(part, _PLAIN) and has_attributes(part):
            inside = getattr(part, "__dict__", None)
        if inside is not None and id(inside) not in self._seen and len(inside) <= _LARGEST:
            self._seen.add(id(inside))
            self._keep(where, inside, depth)


def _held(hook: Any) -> list[tuple[str, Any]]:
    """The containers that a hook reads by name, and the object that it is a method of."""
    reads = [(type(hook.__self__).__name__, hook.__self__)] if isinstance(hook, MethodType) else []
    function = getattr(hook, "__func__", hook)
    variables = variables_of(function) if isinstance(function, FunctionType) else {}
    return reads + [(name, value) for name, value in variables.items() if isinstance(value, dict | list | set | deque)]


def _unchanged(container: Any, copy: Any) -> bool:
    """Whether a container holds the very objects that it held."""
    if len(container) != len(copy):
        return False
    if isinstance(copy, dict):
        if all(map(is_, container, copy)) and all(map(is_, container.values(), copy.values())):
            return True  # takes a few microseconds, as this is done before every step
        pairs = zip(container.items(), copy.items(), strict=True)
        return all(key is copied_key or key == copied_key for (key, _), (copied_key, _) in pairs) and all(
            _same(value, copied) for value, copied in zip(container.values(), copy.values(), strict=True)
        )
    if isinstance(copy, set):
        return container == copy
    return all(map(_same, container, copy))


def _alike(now: Any, was: Any) -> bool:
    """Whether two values are the same, or nests of tensors that a trace of shapes can't tell apart."""
    (leaves_now, spec), (leaves_before, other_spec) = tree_flatten(now), tree_flatten(was)
    return spec == other_spec and all(
        _same(a, b) or (isinstance(a, Tensor) and isinstance(b, Tensor) and _layout(a) == _layout(b))
        for a, b in zip(leaves_now, leaves_before, strict=True)
    )


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def _same(now: Any, was: Any) -> bool:
    if now is was:
        return True
    return type(now) is type(was) and isinstance(now, _PLAIN) and (now == was or (now != now and was != was))
