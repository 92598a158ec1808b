"""Finds out whether a step would still be traced as it was, after the step or a user has changed the module.

It also compares torch's autocast, which decides what a module computes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._mode_utils import no_dispatch

from placeto.capture.module_state.attributes import Snapshot, attribute

_LARGEST = 100_000  # elements of a constant whose values are compared
_UNLIKE = count()  # numbers of nodes that are like no other node


@dataclass(frozen=True, eq=False)
class Signature:
    """What a recorded graph computes, as numbers that can be compared with those of another graph.

    Two nodes have the same number if they compute the same from the same.
    """

    whole: tuple[Any, ...]  # numbers of the outputs, and of the nodes that change something in place
    by_node: Mapping[Node, int]  # number of each node
    dependent: frozenset[Node]  # nodes that depend on what the step is given

    @classmethod
    def of_trace(
        cls, traced: GraphModule, constants: Iterable[Tensor] = (), earlier: tuple[Signature, Any] | None = None
    ) -> Any:
        """The signature of a graph that `record` returned.

        Args:
            traced: the graph.
            constants: those that are compared by identity. Others are compared by their values if they are on the CPU
                and have at most 100,000 elements, or else by identity as well.
            earlier: signature and ``meta["tensors"]`` of a step that ran before. If a constant of this step was made
                there from constants alone, its number is that of the node that made it. If it was made from what that
                step was given, its number is like no other.
        """
        numbers: dict[Node, int] = {}
        dependent: set[Node] = set()
        changed: list[int] = []
        keep = {id(tensor) for tensor in constants}

        def numbered(value: Any) -> Any:
            if isinstance(value, Node):
                return numbers[value]
            if isinstance(value, list | tuple):
                return tuple(map(numbered, value))
            if isinstance(value, dict):
                return tuple((key, numbered(part)) for key, part in value.items())
            return type(value).__name__, repr(value)

        outputs: Any = ()
        for place, node in enumerate(traced.graph.nodes):
            if node.op == "output":
                outputs = numbered(node.args[0])
                continue
            if node.op == "placeholder":
                numbers[node] = hash(("given", place))
                dependent.add(node)
            elif node.op == "get_attr":
                numbers[node] = _constant(getattr(traced, str(node.target)), keep, earlier)
            else:
                numbers[node] = hash((str(node.target), numbered(node.args), numbered(node.kwargs)))
                if not dependent.isdisjoint(node.all_input_nodes):
                    dependent.add(node)
                    schema = getattr(node.target, "_schema", None)
                    if schema is not None and schema.is_mutable:
                        changed.append(numbers[node])
        return cls((outputs, tuple(changed)), numbers, frozenset(dependent))


def _constant(tensor: Tensor, constants: set[int], earlier: tuple[Signature, Any] | None) -> int:
    if earlier is not None:
        signature, tensors = earlier
        node = tensors.get(tensor)
        if node is not None and node.op != "get_attr":
            return next(_UNLIKE) if node in signature.dependent else signature.by_node[node]
    if id(tensor) in constants or tensor.numel() > _LARGEST or tensor.is_meta or not _has_values(tensor):
        return hash(("held", id(tensor)))
    with torch.no_grad(), no_dispatch():
        values = tensor.detach().contiguous().view(-1).view(torch.uint8).tolist()
    return hash((str(tensor.dtype), tuple(tensor.shape), bytes(values)))


def _has_values(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and tensor.device.type == "cpu"
    )


class ChangeDetector:
    """Notices that a module was changed after its step was captured, so that another step would be traced.

    Args:
        state: the state of the module when it was captured.
        trace: what records the step anew.
        signature: the signature of the step.
        own: attributes that the step itself sets, as container and name.
        precision: of the step; in "bf16" and "fp16" it has an autocast of its own.
    """

    def __init__(
        self,
        state: Snapshot,
        trace: Callable[[], Signature],
        signature: Signature,
        free: Iterable[tuple[Any, str]],
        precision: str,
    ) -> None:
        self._state, self._trace, self._signature = state, trace, signature.whole
        self._around, self._cast = surroundings(), precision in ("bf16", "fp16")
        self._free = {(id(container), key) for container, key in free}  # attributes whose changes don't matter

    def elsewhere(self) -> str:
        """A phrase for a message if the autocast of now is another than that of the capture; otherwise ""."""
        around = surroundings()
        if self._cast or around == self._around:
            return ""
        return f"was captured {self._around} and is called {around}"

    def change(self) -> str:
        """A phrase for a message that names what was changed, if that makes another step; otherwise ""."""
        changes = [
            (attribute(where, key), (id(container), key))
            for where, container, key in self._state.changes(tensors=False)
            if (id(container), key) not in self._free
        ]
        if not changes:
            return ""
        try:
            same = self._same()
        except Exception as problem:  # whatever the changed module raises
            return f"{changes[0][0]} ({type(problem).__name__}: {next(iter(str(problem).splitlines()), '')})"
        if same:
            self._free |= {key for _, key in changes}
            return ""
        return ", ".join(dict.fromkeys(what for what, _ in changes[:3]))

    def _same(self) -> bool:
        """Whether the step, traced again with the free attributes of the capture, is the same."""
        present = Snapshot(self._state.module)
        try:
            self._state.restore(only=self._free)
            return self._trace().whole == self._signature
        finally:
            present.restore()


def surroundings() -> str:
    """Which autocast is on, in words: it decides which ops a module runs."""
    cast = [
        f"torch.autocast({device!r}, {torch.get_autocast_dtype(device)})"
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    ]
    return f"under {' and '.join(cast)}" if cast else "without torch.autocast"
