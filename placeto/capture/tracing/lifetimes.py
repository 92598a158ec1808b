"""How long eager execution keeps the memory of each tensor, noted while a step is traced.

PyTorch often keeps a tensor beyond its last use. A function keeps its arguments until it returns, so that a recurrent
layer keeps the gates of all time steps until their results are stacked. Autograd keeps what it saved until its node has
run. A tensor that is changed in place is kept as long as any of its parts. Fake tensors are freed at the same points as
real ones, so none of this is modelled: a finalizer of each storage notes when the storage is freed.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor
from torch.func import debug_unwrap
from torch.fx import GraphModule, Node
from torch.utils._mode_utils import no_dispatch

HELD = "held"
"""Key in a node's ``meta``: the last node that ran before the memory of this node's value was freed, or `KEPT`."""
KEPT = "kept"
"""Said of a node whose value still exists at the end of the step, such as one that a module keeps as an attribute."""
SOURCE = "source"
"""Key in a node's ``meta``: the node of another trace that was being run again when this node was recorded, or None."""
_TOGETHER = 4096  # number of tensors for which one pass over the ops finds what depends on their last use

Part = tuple[int, tuple[int, ...], tuple[int, ...]]


class Lifetimes:
    """Notes when the memory of nodes' values is freed, while the nodes are recorded."""

    def __init__(self) -> None:
        self._last: Node | None = None
        # address of a storage -> the nodes whose values are in it, by the part that they take; None if it is ignored
        self._inside: dict[int, dict[Part, Node] | None] = {}
        self._shared: set[int] = set()  # addresses of storages that several tensors show
        self._maker: dict[int, Node] = {}  # address of a storage -> the node that made it

    def ignore(self, tensor: Tensor, node: Node, shared: bool = False) -> None:
        """Note of an input or a constant only whether another tensor shares its memory, not when it is freed."""
        key = storage_of(tensor)._cdata
        self._maker.setdefault(key, node)
        if shared or key in self._inside:
            self._shared.add(key)
        self._inside[key] = None

    def ran(self, node: Node) -> None:
        """Note that a node has run: memory that is freed before the next one runs was in use while this one ran."""
        self._last = node

    def alone(self, tensor: Tensor) -> bool:
        """Whether no other tensor has been noted that shares a tensor's memory."""
        return storage_of(tensor)._cdata not in self._shared

    def maker(self, tensor: Tensor) -> Node | None:
        """The node that made the memory of a tensor; None if it has not been noted."""
        return self._maker.get(storage_of(tensor)._cdata)

    def note_value(self, tensor: Tensor, node: Node, changed: bool) -> None:
        """Note that a node made a tensor, or, if `changed`, changed it in place."""
        storage = storage_of(tensor)
        key = storage._cdata
        if key not in self._inside:
            self._inside[key], self._maker[key] = {_part(tensor): node}, node
            weakref.finalize(storage, self._freed, key).atexit = False
        elif changed and (inside := self._inside[key]) is not None:
            # the value of a node that takes a larger part is the one from before the change
            kept = {part: holder for part, holder in inside.items() if prod(part[1]) <= tensor.numel()}
            self._inside[key] = kept | {_part(tensor): node}
        elif not changed:
            self._shared.add(key)

    def end(self, gradients: Sequence[Tensor]) -> None:
        """End the notes with the step. Nothing is noted of the gradients that it returns, which parameters keep."""
        for gradient in gradients:
            self._inside.pop(storage_of(gradient)._cdata, None)
        for node in (node for inside in self._inside.values() for node in (inside or {}).values()):
            node.meta[HELD] = KEPT
        self._inside.clear()
        self._maker.clear()

    def _freed(self, key: int) -> None:
        self._shared.discard(key)
        self._maker.pop(key, None)
        inside = self._inside.pop(key, None)
        for node in (inside or {}).values():
            node.meta[HELD] = self._last


def storage_of(tensor: Tensor) -> Any:
    """The storage of a tensor, which isn't recorded; that of torch.func's tensors, such as of `vmap`, is inside."""
    with no_dispatch():
        return debug_unwrap(tensor).untyped_storage()


def _part(tensor: Tensor) -> Part:
    with no_dispatch():
        return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()


def carry_over(traced: GraphModule, retraced: GraphModule) -> None:
    """Copy what `HELD` says of the nodes of a trace to the nodes of another trace that were made for them.

    Args:
        traced: the trace with the notes.
        retraced: the trace that gets them; `SOURCE` says which node of `traced` each of its nodes was made for.
    """
    made_for: dict[Node, list[Node]] = {}  # node of `traced` -> the nodes of `retraced` that were made for it
    for node in retraced.graph.nodes:
        node.meta.pop(HELD, None)
        made_for.setdefault(node.meta.get(SOURCE), []).append(node)
    value: dict[Node, Node] = {}  # node of `traced` -> the node of `retraced` that has its value
    wholes: list[tuple[Node, Node]] = []  # node that changes a part of a tensor, and the whole after its last change
    latest: dict[Any, Any] = {}  # node of `traced` -> the last node of `retraced` that has run once it has run
    last: Node | None = None
    for node in traced.graph.nodes:
        copies = [copy for copy in made_for.get(node, ()) if _alike(copy, node)]
        wholes += [(node, copy) for copy in made_for.get(node, ()) if _is_changed_last(copy)]
        if node.target is operator.getitem and (whole := value.get(node.args[0])) is not None:
            copies = [user for user in whole.users if user.target is operator.getitem and user.args[1] == node.args[1]]
        if copies:
            value[node] = copies[-1]
        last = next((copy for copy in reversed(made_for.get(node, ())) if copy.target is not operator.getitem), last)
        if last is not None:
            latest[node] = last
    latest[KEPT] = KEPT
    for node, copy in (*value.items(), *wholes):
        if (until := latest.get(node.meta.get(HELD))) is not None:
            copy.meta[HELD] = until


def _is_changed_last(copy: Node) -> bool:
    """Whether a node puts a changed part into a tensor of which no further part is changed."""
    return "_scatter" in copy.name and not any("_scatter" in user.name for user in copy.users)


def _alike(first: Node, second: Node) -> bool:
    """Whether the values of two nodes are tensors of one shape and dtype, or sequences, the first at least as long.

    Where an op also changes arguments in place, such as the statistics of a norm, a functional op stands for it in the
    first trace, which returns their new values after the results.
    """
    a, b = first.meta.get("val"), second.meta.get("val")
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype
    return isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) >= len(b)


def hold(
    records: Sequence[dict[str, Any]],
    until: Mapping[tuple[int, int], int],
    run_by: Sequence[int | None],
    rests: Mapping[tuple[int, int], tuple[int, int]],
) -> None:
    """Add to op records how long their tensors are held beyond the last use.

    A schedule may run ops in another order than eager execution did. So a tensor is held until the last op that ran
    before it was freed and that depends on the op of its last use, or that the same node of autograd runs: a node keeps
    all that it saved until its last op has run. A tensor that is never freed is held until the last op. One that was
    last used for no gradient, as all are in an inference, is held until the last op before it was freed: on a second
    head that nobody reads, no later op depends, nor does the other direction of a recurrent layer on the first one.

    Args:
        records: the records of the ops, in the order of the trace. The op of a held tensor gets a field "held", with
            the op until which it is held, and the number of the output.
        until: tensor, as op and output -> the last op that ran before it was freed; the number of ops if it never was.
        run_by: the node of autograd that runs each op; None in the forward pass.
        rests: tensors that stand for the rest of another one's storage -> this other one. They are held as long.
    """
    sources = [record["inputs"] for record in records]
    for_gradients = [node is not None for node in run_by]  # whether an op is of the backward pass, or read by one
    for op in reversed(range(len(records))):
        if for_gradients[op]:
            for source, _ in sources[op]:
                for_gradients[source] = True
    used: dict[tuple[int, int], int] = {}  # tensor -> op of its last use, that of views included
    for op in reversed(range(len(records))):
        last = op
        if _is_view(records[op]):
            last = max((used.get((op, output), op) for output in range(len(records[op]["outputs"]))), default=op)
        for tensor in sources[op]:
            used[tensor] = max(used.get(tensor, 0), last)
    used |= {rest: used.get(tensor, tensor[0]) for rest, tensor in rests.items()}
    live_ranges = [
        (tensor, use, max(last, use))
        for tensor, last in until.items()
        if last > (use := used.get(tensor, tensor[0])) or tensor in rests
    ]
    for first in range(0, len(live_ranges), _TOGETHER):
        some = live_ranges[first : first + _TOGETHER]
        begun: dict[int, int] = {}  # op -> bits of the tensors whose last use it is
        for number, (_, use, _) in enumerate(some):
            begun[use] = begun.get(use, 0) | 1 << number
        follows: list[int] = []  # for each op, bits of the tensors whose last use is this op or one that it depends on
        for number, inputs in enumerate(sources):
            bits = begun.get(number, 0)
            for source, _ in inputs:
                bits |= follows[source]
            follows.append(bits)
        for number, ((op, output), use, last) in enumerate(some):
            node = run_by[use]
            whatever = last == len(records) or not for_gradients[use]
            end = next(
                later
                for later in range(min(last, len(records) - 1), use - 1, -1)
                if whatever or follows[later] >> number & 1 or (node is not None and run_by[later] == node)
            )
            if end > (op if (op, output) in rests else use):
                records[op].setdefault("held", []).append((end, output))


def _is_view(record: Mapping[str, Any]) -> bool:
    """Whether an op only shows a part of its input: it has inputs, but no FLOPs and no bytes."""
    return bool(record["inputs"]) and not record.get("flops") and not record.get("bytes_accessed")
