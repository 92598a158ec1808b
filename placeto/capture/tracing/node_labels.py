"""Labels that say where each traced op comes from: the module that was being called, and the pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Node

from placeto.capture.tracing.dependencies import behind
from placeto.capture.tracing.draws import Draws
from placeto.capture.tracing.lifetimes import Lifetimes
from placeto.capture.tracing.sharing import Makers, Sharing, handed_over
from placeto.problem.graph.module_paths import LOSS, inside, unit_of
from placeto.problem.step.micro_batches import NO_CALL


@dataclass(frozen=True)
class Label:
    """Where a traced node comes from."""

    module: str = ""  # path of the nn.Module
    call: int = NO_CALL  # how many calls of this module came before; `NO_CALL` outside of the calls of modules
    backward: bool = False
    recomputed: bool = False  # whether it repeats an op of the forward pass in the backward pass
    node: int | None = None  # in the backward pass, sequence number of the node of autograd that is being run
    callers: tuple[str, ...] = ()  # paths of the modules that are being called too, but don't contain this module

    @property
    def part(self) -> str:
        """The pass of the step that the node belongs to: "forward", "backward" or "recomputation"."""
        return "recomputation" if self.recomputed else "backward" if self.backward else "forward"


class _Place(NamedTuple):
    """What is being run: a call of a module, in a pass."""

    module: str | None = None
    call: int = NO_CALL
    callers: tuple[str, ...] = ()
    makers: Makers = frozenset()  # makers of the tensors that a tool has moved to the device of the module
    backward: bool = False
    number: int | None = None  # sequence number of the forward op whose backward is being run


class Labels:
    """Follows what is being run while a module is traced, and gives each op its label."""

    def __init__(self) -> None:
        self._place = _Place()
        self._left: list[_Place] = []  # the places to return to, the outermost first
        self._by_number: dict[int, Label] = {}  # sequence number of autograd -> label of the forward op
        self.source: Node | None = None  # the recorded node that is run again, with its label; None in a first trace
        self.draws = Draws()
        self.sharing = Sharing(Lifetimes())
        self.handing_over = False  # whether modules get copies of lists and mappings, as from tools that move arguments
        self.calls: Counter[str] = Counter()  # path of a module -> how often it was called in the last trace
        self.own_gradients: dict[str, None] = {}  # of the last trace, what makes gradients of its own, with the module

    def next(self, inputs: Sequence[Label]) -> Label:
        """The label of an op that runs now; `inputs` are the labels of the nodes whose values it reads."""
        place = self._place
        if self.source is not None:
            return self.source.meta.get("label", Label())
        if place.module is not None or not place.backward:  # a module in the backward pass: a checkpoint recomputes
            again = place.backward
            label = Label(place.module or "", place.call, again, again, place.number, place.callers)
            if not place.backward:  # autograd has taken the op's number before it runs the op
                self._by_number.setdefault(torch.autograd._get_sequence_nr() - 1, label)
            return label
        # the gradients of a tensor used twice are added between two nodes of autograd: the sum is labelled as the later
        source = None if place.number is None else self._by_number.get(place.number)
        source = source or (inputs[-1] if inputs else Label())
        return replace(source, backward=True, recomputed=False, node=place.number)

    @property
    def argument_makers(self) -> Makers:
        """The makers of the tensors in the arguments of the module that is being called."""
        return self._place.makers

    def note_own_gradients(self, name: str) -> None:
        """Note that what has this name is used, and makes gradients of its own; the loss may."""
        if not self._place.backward and not inside(path := self._place.module or "", LOSS):
            self.own_gradients[f"{name} in {path or 'the model itself'}"] = None

    def within(self, module: str, call: int) -> AbstractContextManager[None]:
        """A context in which ops belong to a call of a module."""
        return self._at(module=module, call=call)

    def backward(self) -> AbstractContextManager[None]:
        """A context in which ops belong to the backward pass."""
        return self._at(backward=True)

    def at_present_call(self) -> Callable[[], AbstractContextManager[None]]:
        """Return what makes contexts in which ops belong to the present call of a module, to recompute it later."""
        place = self._place
        return lambda: self.within(place.module or "", place.call)

    @contextmanager
    def following(self, module: nn.Module) -> Iterator[None]:
        """A context in which ops get the path of the submodule that runs them, and the number of its call."""
        calls, self.own_gradients = Counter[str](), {}
        self.calls = calls
        names: dict[nn.Module, list[str]] = defaultdict(list)
        for path, submodule in module.named_modules(remove_duplicate=False):
            names[submodule].append(path)
        with_tensors = {part for part in names if any(True for _ in (*part.parameters(), *part.buffers()))}

        def moved(place: _Place, path: str) -> Makers:
            """The makers of what has been moved already when a module is called: hooks of users get no more."""
            return place.makers if inside(place.module or "", unit_of(path)) else frozenset()

        def enter(module: nn.Module, arguments: Any) -> None:
            place, paths = self._place, names[module]
            path = paths[0]
            if module not in with_tensors:  # it runs where it is called, so that it counts as a part of its caller
                path = next((name for name in paths if inside(name, place.module or "")), path)
            outer = (*place.callers, place.module)
            callers = tuple(c for c in outer if c and not any(inside(name, c) for name in paths))
            self._enter(place._replace(module=path, call=calls[path], callers=callers, makers=moved(place, path)))
            calls[path] += 1

        def begin(module: nn.Module, arguments: Any, named: Any) -> Any:
            place, given = self._place, (arguments, tuple(named.values()))
            path = place.module or ""
            hooked = bool(path) and (module in with_tensors or unit_of(path) == path)
            self.sharing.called(path, given, names, hooked)
            makers = place.makers | self.sharing.makers(given)
            self._place = place._replace(makers=makers - self.sharing.unmoved(module, given) if makers else makers)
            if not self.handing_over:
                return None
            handed = (handed_over(arguments), handed_over(named)) if hooked else (arguments, named)
            self.sharing.watch(path, (given, handed[0], tuple(handed[1].values())))
            return handed

        def end(module: nn.Module, arguments: Any, output: Any) -> None:
            self._place = self._place._replace(makers=moved(self._left[-1], self._place.module or ""))

        def leave(module: nn.Module, arguments: Any, output: Any) -> None:
            self.sharing.returned(self._place.module or "", output)
            self._leave()

        with ExitStack() as hooks:
            for submodule in module.modules():
                hooks.enter_context(submodule.register_forward_pre_hook(enter, prepend=True))
                hooks.enter_context(submodule.register_forward_pre_hook(begin, with_kwargs=True))
                hooks.enter_context(submodule.register_forward_hook(end, prepend=True))
                hooks.enter_context(submodule.register_forward_hook(leave, always_call=True))
            yield

    def tag_backward(self, loss: Tensor) -> None:
        """Add hooks to the autograd nodes of a loss, so that what a node runs gets the label of its forward op."""

        def before(number: int) -> Callable[[Any], None]:
            def hook(gradients: Any) -> None:
                self._enter(self._place._replace(number=number))

            return hook

        def after(inputs: Any, outputs: Any) -> None:
            self._leave()

        for node in behind(loss):
            node.register_prehook(before(node._sequence_nr()))
            node.register_hook(after)

    @contextmanager
    def _at(self, **place: Any) -> Iterator[None]:
        self._enter(self._place._replace(**place))
        try:
            yield
        finally:
            self._leave()

    def _enter(self, place: _Place) -> None:
        self._left.append(self._place)
        self._place = place

    def _leave(self) -> None:
        self._place = self._left.pop()
