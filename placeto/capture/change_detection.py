"""Whether a step would be traced as it was: after it has changed its module's attributes, or a user has.

Torch's autocast decides what a module computes as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._mode_utils import no_dispatch

from placeto.capture.state import Snapshot, attribute

_LARGEST = 100_000  # elements of a constant whose values are compared
_UNLIKE = count()


@dataclass(frozen=True, eq=False)
class Signature:
    """What a recorded graph computes.

    A node has the number of another if both compute the same from the same.
    """

    whole: tuple[Any, ...]  # of the outputs, and of what is changed in place
    by_node: Mapping[Node, int]
    given: frozenset[Node]  # nodes that depend on what the step is given

    @classmethod
    def of(cls, traced: GraphModule, held: Iterable[Tensor] = (), before: tuple[Signature, Any] | None = None) -> Any:
        """The signature of what `record` gave.

        Args:
            traced: with ``meta["tensors"]``, the node that made each tensor.
            held: constants that count as the tensors that they are; of all others the values count.
            before: signature and tensors of a step that ran before, whose tensors may be constants of this one: those
                made of constants alone count as what made them, all others as other than anything else.
        """
        numbers: dict[Node, int] = {}
        given: set[Node] = set()
        changed: list[int] = []
        keep = {id(tensor) for tensor in held}

        def known(value: Any) -> Any:
            if isinstance(value, Node):
                return numbers[value]
            if isinstance(value, list | tuple):
                return tuple(map(known, value))
            if isinstance(value, dict):
                return tuple((key, known(part)) for key, part in value.items())
            return type(value).__name__, repr(value)

        outputs: Any = ()
        for place, node in enumerate(traced.graph.nodes):
            if node.op == "output":
                outputs = known(node.args[0])
                continue
            if node.op == "placeholder":
                numbers[node] = hash(("given", place))
                given.add(node)
            elif node.op == "get_attr":
                numbers[node] = _constant(getattr(traced, str(node.target)), keep, before)
            else:
                numbers[node] = hash((str(node.target), known(node.args), known(node.kwargs)))
                if not given.isdisjoint(node.all_input_nodes):
                    given.add(node)
                    schema = getattr(node.target, "_schema", None)
                    if schema is not None and schema.is_mutable:
                        changed.append(numbers[node])
        return cls((outputs, tuple(changed)), numbers, frozenset(given))


def _constant(tensor: Tensor, held: set[int], before: tuple[Signature, Any] | None) -> int:
    if before is not None:
        signature, tensors = before
        node = tensors.get(tensor)
        if node is not None and node.op != "get_attr":
            return next(_UNLIKE) if node in signature.given else signature.by_node[node]
    if id(tensor) in held or tensor.numel() > _LARGEST or tensor.is_meta or not _has_values(tensor):
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
        trained: which parameters were trainable, in their order; None in inference.
    """

    def __init__(
        self,
        state: Snapshot,
        trace: Callable[[], Signature],
        signature: Signature,
        own: Iterable[tuple[Any, str]],
    ) -> None:
        self._state, self._trace, self._signature = state, trace, signature.whole
        self._around = surroundings()
        self._alike = {self._around}  # surroundings in which the step is the same
        self._free = {(id(container), key) for container, key in own}  # what doesn't matter

    def elsewhere(self) -> str:
        """How what surrounds the call makes another step than was captured, for a message; empty if it doesn't."""
        around = surroundings()
        if around in self._alike:
            return ""
        try:
            with _cuda_as_cpu():
                same = self._same()
        except Exception:  # whatever the module raises there
            same = False
        if same:
            self._alike.add(around)
            return ""
        return f"was captured {self._around} and is called {around}"

    def change(self) -> str:
        """What was changed so that the step would be another, for a message; empty if nothing was."""
        found = [
            (attribute(where, key), (id(container), key))
            for where, container, key in self._state.changes(tensors=False)
            if (id(container), key) not in self._free
        ]
        if not found:
            return ""
        try:
            same = self._same(self._free)
        except Exception as problem:  # whatever the changed module raises
            return f"{found[0][0]} ({type(problem).__name__}: {next(iter(str(problem).splitlines()), '')})"
        if same:
            self._free |= {key for _, key in found}
            return ""
        return ", ".join(dict.fromkeys(what for what, _ in found[:3]))

    def _same(self, only: set[tuple[int, str]] | None = None) -> bool:
        """Whether the step, traced again with the attributes of the capture (or with these alone), is the same."""
        present = Snapshot(self._state.module)
        try:
            self._state.restore(only=only)
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


@contextmanager
def _cuda_as_cpu() -> Iterator[None]:
    """A GPU's autocast counts on the CPU, where steps are traced."""
    with ExitStack() as stack:
        if torch.is_autocast_enabled("cuda"):
            stack.enter_context(torch.autocast("cpu", torch.get_autocast_dtype("cuda")))
        yield
