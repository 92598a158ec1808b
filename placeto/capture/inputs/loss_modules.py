"""Modules and tensors that belong to a loss: the loss itself if it is a module, and what the function closes over."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from placeto.capture.inputs.objects import has_attributes, variables_of

_DEEPEST = 4  # the greatest depth to which functions and containers within each other are searched


def modules_of(loss: Callable[..., Any] | None, module: nn.Module) -> dict[str, nn.Module]:
    """Modules that a loss reads and that aren't part of `module`, by name: first those with tensors, then others.

    These are the loss itself, the module that it is a method of, and the modules that functions, partials and callable
    objects close over, hold or take from their file.
    """
    module_tensors = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    modules = {id(part) for part in module.modules()}
    paths = [path for path, _ in module.named_modules()]
    named_modules: dict[str, nn.Module] = {}
    without: dict[int, nn.Module] = {}

    def add(part: nn.Module) -> None:
        name = "loss" if not named_modules else f"loss_{len(named_modules)}"
        while any(path == name or path.startswith(f"{name}.") for path in paths):
            name += "_"
        named_modules[name] = part

    for part in _held(loss, 0):
        if isinstance(part, Tensor):
            continue
        tensors = [*part.parameters(), *part.buffers()]
        if new_tensors := [tensor for tensor in tensors if id(tensor) not in module_tensors]:
            module_tensors |= set(map(id, new_tensors))
            add(part)
        elif not tensors and id(part) not in modules:
            without[id(part)] = part
    for part in without.values():
        add(part)
    return named_modules


def tensors_of(loss: Callable[..., Any] | None) -> list[Tensor]:
    """Tensors, other than parameters, that a loss holds or closes over outside of modules: constants of the step."""
    return [part for part in _held(loss, 0) if isinstance(part, Tensor) and not isinstance(part, nn.Parameter)]


def _held(thing: Any, depth: int) -> Iterator[nn.Module | Tensor]:
    if isinstance(thing, nn.Module | Tensor):
        yield thing
        return
    inside: list[Any] = []
    if depth > _DEEPEST:
        return
    if isinstance(thing, functools.partial):
        inside = [thing.func, *thing.args, *thing.keywords.values()]
    elif isinstance(thing, types.MethodType):
        inside = [thing.__self__, thing.__func__]
    elif isinstance(thing, types.FunctionType):
        inside = [*variables_of(thing).values(), *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        inside = [part for part in inside if not isinstance(part, types.FunctionType) or part is not thing]
    elif isinstance(thing, list | tuple):
        inside = list(thing)
    elif isinstance(thing, dict):
        inside = list(thing.values())
    elif has_attributes(thing):
        inside = list(getattr(thing, "__dict__", {}).values())
    for part in inside:
        yield from _held(part, depth + 1)
