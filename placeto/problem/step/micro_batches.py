"""A step in micro-batches: the graph of one micro-batch, and the graph of all of them, which is made from it.

Legend: N ops of one micro-batch, E edges between them, M micro-batches, S sums, J joins. A *row* is an op of one
micro-batch (0 to N-1), an addition of a sum (S rows), a whole gradient (S rows), or a join (J rows).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import GRADIENT, of_no_micro_batch
from placeto.problem.graph.graph_memory import storage
from placeto.problem.graph.labels import BACKWARD_PASSES, LABELS, NO_MICRO_BATCH, TENSORS
from placeto.problem.graph.memory_fields import NOT_HELD
from placeto.problem.graph.op_records import fields_of_ops

NO_CALL = -1
"""Number of the call of a module for an op that no call of a module runs."""
_LABELS = ("op_types", "modules", "signatures", *LABELS)


@dataclass(frozen=True)
class Sum:
    """A tensor of each micro-batch that is added up: the gradient of a parameter, or the loss."""

    source: tuple[int, int]  # op and output of the tensor
    after: int  # the last op that has run when the tensor is there: its addition comes next
    addition: Mapping[str, Any]  # record of an op that adds two such tensors, without its name and inputs
    parameter: str = ""  # the name of the parameter's op; "" for the loss
    call: int = NO_CALL  # the call of the module that the addition belongs to, as `Step.call`
    calls: int = 0  # as `Step.calls`


@dataclass(frozen=True)
class Join:
    """A tensor of each micro-batch that is joined along the batch, such as an output of an inference."""

    source: tuple[int, int] | None  # op and output of the tensor; None if no op makes it
    joined: Mapping[str, Any]  # record of the op that joins the tensors of all micro-batches, without name and inputs


@dataclass(frozen=True)
class Carried:
    """An op reads a tensor that the micro-batch before makes, such as running statistics; the first one reads none."""

    reader: int  # op
    place: int  # the number of inputs of the reader before this one
    source: tuple[int, int]  # op and output of the tensor


@dataclass(frozen=True, eq=False)
class Step:
    """The graph of one micro-batch, and what the micro-batches share.

    The loss of a step is the mean over its micro-batches: each divides its loss by M. The ops of `micro_batch` belong
    to micro-batch 0, or to all micro-batches (`NO_MICRO_BATCH`): parameters, buffers, and copies of parameters in other
    dtypes. Ops that belong to all and read only such ops are there once, unless they are `repeated`. An op that only
    shows a part of a tensor stays with the op that makes the tensor. The names of ops follow from `title`.
    """

    micro_batch: ComputationGraph  # N ops; gradients have no home yet
    count: int = 1  # M
    sums: tuple[Sum, ...] = ()  # in the order in which additions come
    joins: tuple[Join, ...] = ()
    carried: tuple[Carried, ...] = ()
    trained: tuple[str, ...] = ()  # parameters with a gradient; it is a constant if there is no sum for it
    call: np.ndarray | None = None  # (N,) int64, the call of its module that runs an op; None = all `NO_CALL`
    calls: np.ndarray | None = None  # (N,) int64, the calls of this module in a micro-batch; None = all 0
    repeated: np.ndarray | None = None  # (N,) bool, ops that belong to all but that each micro-batch runs; None = none
    unread: frozenset[str] = field(default=frozenset())  # of `module_tensors`, names of tensors that no op reads

    @cached_property
    def graph(self) -> ComputationGraph:
        """The graph of all micro-batches."""
        return in_micro_batches(self)

    @property
    def gradients(self) -> dict[str, tuple[str, int] | None]:
        """The op of `graph`, and its output, that is the gradient of each trained parameter; None for a constant."""
        found: dict[str, tuple[str, int] | None] = dict.fromkeys(self.trained)
        for each in self.sums:
            if each.parameter and self.count == 1:
                found[each.parameter] = self.micro_batch.op_names[each.source[0]], each.source[1]
            elif each.parameter:
                found[each.parameter] = f"{each.parameter}/{GRADIENT}", 0
        return found

    @cached_property
    def shared(self) -> np.ndarray:
        """(rows,) bool, the ops that are there once for all micro-batches."""
        shared = of_no_micro_batch(self.micro_batch)
        if self.repeated is not None:
            shared &= ~self.repeated
        return np.append(shared, np.zeros(2 * len(self.sums) + len(self.joins), bool))

    @cached_property
    def order(self) -> tuple[np.ndarray, np.ndarray]:
        """Two arrays (ops of `graph`,) int64: the row, and the number of the micro-batch, of each op of `graph`."""
        return _order(self)


def title(module: str, call: int, part: str, kind: str) -> str:
    """Return the name of an op, as far as no other op has it.

    >>> title("encoder.0", 1, "backward", "aten.mm")
    'encoder.0@1/grad/mm'
    """
    of_call, of_part = f"@{call}" if call > 0 else "", "/grad" if part in BACKWARD_PASSES else ""
    return f"{module}{of_call}{of_part}/{kind.rpartition('.')[2]}".lstrip("/")


def in_micro_batches(step: Step) -> ComputationGraph:
    """Return the graph of all micro-batches of a step, with the chains that add up the gradients.

    The micro-batches come one after the other. Directly after an op that makes a gradient, an op adds it to the sum of
    those of the micro-batches before, as PyTorch does. An op of type "gradient" follows the last addition, without
    cost: it is the whole gradient, and stays with the parameter. Both name the parameter (`gradient_of`). The bytes of
    buffers count once. With one micro-batch, the op that makes a gradient stays with the parameter.
    """
    if step.count == 1:
        return _with_homes(step)
    one = step.micro_batch
    row, number = step.order
    columns = _columns(step)
    rows, size = row.tolist(), one.num_ops
    repeated = (row < size) & (number > 0)
    place = _places(step, row, number)
    ptr, taken = columns["output_ptr"], _spans(columns["output_ptr"], row)
    output_ptr = np.concatenate([[0], np.cumsum(np.diff(ptr)[row])])
    src, dst, output = _edges(step, place)
    colocation = _colocation(step, row, number, place)
    belongs = np.concatenate([one.micro_batches, np.full(len(ptr) - 1 - size, NO_MICRO_BATCH)])[row]
    named = [name for each in step.sums for name in [each.parameter]]
    names_of = [*[""] * size, *named, *named, *[""] * len(step.joins)]

    def strings(column: str) -> tuple[Any, ...]:
        return tuple(map(columns[column].__getitem__, rows))

    def counted(column: str) -> np.ndarray:
        return np.where(repeated, 0, columns[column][row])

    first = columns["module_tensors"]
    others = [tuple(name for name in names if name not in step.unread) for names in first]
    return ComputationGraph(
        name=one.name,
        mode=one.mode,
        op_names=_names(step, row, number),
        flops=columns["flops"][row],
        bytes_accessed=columns["bytes_accessed"][row],
        param_bytes=counted("param_bytes"),
        trained_bytes=counted("trained_bytes"),
        state_bytes=counted("state_bytes"),
        colocation=colocation,
        output_ptr=output_ptr,
        output_bytes=columns["output_bytes"][taken],
        resident_outputs=columns["resident_outputs"][taken],
        held_until=_held(
            step, columns["held_until"][taken], place, *np.repeat(step.order, np.diff(output_ptr), axis=1)
        ),
        edge_src=src,
        edge_dst=dst,
        edge_output=output,
        time_us={kind: np.append(us, np.full(len(ptr) - 1 - size, np.nan))[row] for kind, us in one.time_us.items()},
        micro_batches=np.where(belongs == NO_MICRO_BATCH, NO_MICRO_BATCH, number),
        module_tensors=tuple((others if again else first)[r] for r, again in zip(rows, repeated.tolist(), strict=True)),
        module_inputs=strings("module_inputs"),
        gradient_of=tuple(map(names_of.__getitem__, rows)),
        **{column: strings(column) for column in _LABELS},
    )


def _with_homes(step: Step) -> ComputationGraph:
    """The graph of a step with one micro-batch: its gradients are resident, on the devices of their parameters."""
    one = step.micro_batch
    resident, labels = one.resident_outputs.copy(), one.colocation.tolist()
    pairs = [(one.index[each.parameter], each.source[0]) for each in step.sums if each.parameter]
    for each in step.sums:
        if each.parameter:
            resident[one.output_ptr[each.source[0]] + each.source[1]] = True
    return replace(
        one,
        micro_batches=np.full(one.num_ops, NO_MICRO_BATCH),
        colocation=_joined(labels, pairs),
        resident_outputs=resident,
        held_until=np.where(resident & ~one.resident_outputs, NOT_HELD, one.held_until),
    )


def _order(step: Step) -> tuple[np.ndarray, np.ndarray]:
    """See `Step.order`."""
    one, size, count = step.micro_batch, step.micro_batch.num_ops, step.count
    if count == 1:
        return np.arange(size), np.zeros(size, np.int64)
    shared = step.shared.tolist()
    idle = [op for op in range(size) if shared[op] and one.op_types[op] in TENSORS and not one.readers[op]]
    following: dict[int, list[int]] = {}
    for number, each in enumerate(step.sums):
        following.setdefault(each.after, []).append(number)
    first = sorted(set(range(size)) - set(idle))
    between: list[int] = []  # rows of a micro-batch that is neither the first nor the last one
    end: list[int] = []  # rows of the last one
    for op in range(size):
        mine = [] if shared[op] else [op]
        added = [size + number for number in following.get(op, ())]
        between += mine + added
        end += mine + [
            row for a in added for row in ((a, a + len(step.sums)) if step.sums[a - size].parameter else (a,))
        ]
    joins = [size + 2 * len(step.sums) + number for number in range(len(step.joins))]
    sequence = [first, *[between] * (count - 2), end]
    numbers = np.repeat(np.arange(count), list(map(len, sequence)))
    beside = np.array(joins + idle, np.int64)
    rows = np.concatenate([np.array(part, np.int64) for part in sequence])
    return np.concatenate([rows, beside]), np.concatenate([numbers, np.zeros(len(beside), np.int64)])


def _places(step: Step, row: np.ndarray, number: np.ndarray) -> np.ndarray:
    """(M, rows) int64, the op of the whole graph that is a row of a micro-batch; -1 if there is none."""
    size, extra = step.micro_batch.num_ops, 2 * len(step.sums) + len(step.joins)
    place = np.full((step.count, size + extra), -1)
    place[number, row] = np.arange(len(row))
    shared = np.flatnonzero(step.shared)
    place[:, shared] = place[0, shared]
    return place


def _columns(step: Step) -> dict[str, Any]:
    """The fields of all rows, as those of a graph; its ops are the rows."""
    one = step.micro_batch
    records: list[dict[str, Any]] = [{**each.addition, "name": f"addition {s}"} for s, each in enumerate(step.sums)]
    for s, each in enumerate(step.sums):
        whole = {"name": f"whole {s}", "type": GRADIENT, "module": each.parameter.rpartition(".")[0]}
        records.append(whole | {"outputs": each.addition["outputs"], "pass": "backward", "resident_outputs": [0]})
    records += [{**each.joined, "name": f"join {j}"} for j, each in enumerate(step.joins)]
    beside = fields_of_ops(records, one.mode) if records else {}
    columns: dict[str, Any] = {}
    for column in (*_LABELS, "module_tensors", "module_inputs"):
        columns[column] = (*getattr(one, column), *beside.get(column, ()))
    for column in ("flops", "bytes_accessed", "param_bytes", "trained_bytes", "state_bytes", "output_bytes",
                   "resident_outputs", "held_until"):  # fmt: skip
        values = getattr(one, column)
        columns[column] = np.append(values, beside[column]) if records else values
    columns["output_ptr"] = one.output_ptr
    if records:
        columns["output_ptr"] = np.append(one.output_ptr, beside["output_ptr"][1:] + one.output_ptr[-1])
    return columns


def _spans(ptr: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The tensors of some rows, one row after the other; those of row r are from ``ptr[r]`` to ``ptr[r + 1]``."""
    lengths = np.diff(ptr)[row]
    begin = np.cumsum(lengths) - lengths
    return np.repeat(ptr[row] - begin, lengths) + np.arange(lengths.sum())


def _edges(step: Step, place: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, destination and output of the edges of the whole graph, by destination."""
    one, size, count, sums = step.micro_batch, step.micro_batch.num_ops, step.count, len(step.sums)
    rank = 2 * (np.arange(one.num_edges) - one.input_ptr[one.edge_dst])  # even numbers: carried tensors come between
    numbers = np.arange(count)[:, None]
    there = place[numbers, one.edge_dst] >= 0  # (M, E)
    there[1:, step.shared[one.edge_dst]] = False
    tables = [np.stack([place[numbers, one.edge_src], place[numbers, one.edge_dst],
                        *(np.broadcast_to(a, there.shape) for a in (one.edge_output, rank))])[:, there]]  # fmt: skip
    beside: list[tuple[int, int, int, int]] = []
    for carried in step.carried:
        (op, output), reader = carried.source, carried.reader
        beside += [(place[m - 1, op], place[m, reader], output, 2 * carried.place - 1) for m in range(1, count)]
    for s, each in enumerate(step.sums):
        op, output = each.source
        before = (place[0, op], output)
        for m in range(1, count):
            addition = place[m, size + s]
            beside += [(before[0], addition, before[1], 0), (place[m, op], addition, output, 1)]
            before = (addition, 0)
        if each.parameter:
            beside.append((before[0], place[-1, size + sums + s], 0, 0))
    for j, join in enumerate(step.joins):
        if join.source is not None:
            (op, output), end = join.source, place[0, size + 2 * sums + j]
            parts = dict.fromkeys(place[m, op] for m in range(count))
            beside += [(part, end, output, m) for m, part in enumerate(parts)]
    table = np.concatenate([*tables, np.array(beside, np.int64).reshape(-1, 4).T], axis=1)
    src, dst, output, rank = table[:, np.lexsort((table[3], table[1]))]
    return src, dst, output


def _held(step: Step, until: np.ndarray, place: np.ndarray, row: np.ndarray, number: np.ndarray) -> np.ndarray:
    """(tensors,) int64, the ops until which tensors are held; those that all share until an op of the last micro-batch.

    Args:
        step: the step.
        until: (tensors,) the ops of one micro-batch.
        place: (M, rows) the ops of the whole graph.
        row: (tensors,) the row that makes each tensor.
        number: (tensors,) the micro-batch of each tensor.
    """
    held, of = until != NOT_HELD, np.where(step.shared[row], step.count - 1, number)
    return np.where(held, place[of, np.where(held, until, 0)], NOT_HELD)


def _colocation(step: Step, row: np.ndarray, number: np.ndarray, place: np.ndarray) -> np.ndarray:
    """(ops,) int64, groups of the whole graph: each micro-batch has its own, and each parameter one with its gradient.

    Parts of a shared tensor are in the group of the shared op. Micro-batch 0 has the groups of all else that is shared.
    """
    one, size = step.micro_batch, step.micro_batch.num_ops
    shown, with_shared = storage(one), step.shared.copy()
    for tensor in np.flatnonzero(shown != np.arange(len(shown))).tolist():
        with_shared[one.producer[tensor]] |= step.shared[one.producer[shown[tensor]]]
    group = np.append(one.colocation, np.full(2 * len(step.sums) + len(step.joins), -1))[row]
    apart = np.where(with_shared[row], 0, number)
    labels = np.where(group >= 0, group * step.count + apart, -1)
    _, inverse, members = np.unique(labels, return_inverse=True, return_counts=True)
    labels = np.where((members[inverse] > 1) & (labels >= 0), labels, -1)
    pairs = [
        (int(place[0, one.index[each.parameter]]), int(place[-1, size + len(step.sums) + s]))
        for s, each in enumerate(step.sums)
        if each.parameter
    ]
    return _joined(labels.tolist(), pairs)


def _joined(labels: list[int], pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """(ops,) int64, groups where the two ops of each pair are in one, numbered in the order of their first ops."""
    parent: dict[int, int] = {}

    def find(label: int) -> int:
        while parent.get(label, label) != label:
            label = parent[label]
        return label

    free = max(labels, default=0)
    for pair in pairs:
        for op in pair:
            if labels[op] < 0:
                free += 1
                labels[op] = free
        one, other = sorted(find(labels[op]) for op in pair)
        parent[other] = one
    groups: dict[int, int] = {}
    return np.array([-1 if label < 0 else groups.setdefault(find(label), len(groups)) for label in labels], np.int64)


def _names(step: Step, row: np.ndarray, number: np.ndarray) -> tuple[str, ...]:
    """The names of the ops of the whole graph: later calls of a module have higher numbers."""
    one, size, sums = step.micro_batch, step.micro_batch.num_ops, step.sums
    call = np.full(size, NO_CALL) if step.call is None else step.call
    calls = np.zeros(size, np.int64) if step.calls is None else step.calls
    of: list[tuple[str, int, int, str, str]] = list(
        zip(one.modules, call.tolist(), calls.tolist(), one.passes, one.op_types, strict=True)
    )
    of += [(s.addition["module"], s.call, s.calls, s.addition["pass"], s.addition["type"]) for s in sums]
    of += [("", NO_CALL, 0, "", "")] * len(sums)
    of += [(j.joined["module"], NO_CALL, 0, j.joined["pass"], j.joined["type"]) for j in step.joins]
    fixed = {op: name for op, name in enumerate(one.op_names) if one.op_types[op] in TENSORS}
    fixed |= {size + len(sums) + s: f"{each.parameter}/{GRADIENT}" for s, each in enumerate(sums)}
    used: dict[str, int] = {}
    names = []
    for r, m in zip(row.tolist(), number.tolist(), strict=True):
        if (name := fixed.get(r)) is None:
            module, first, again, part, kind = of[r]
            name = title(module, first if first == NO_CALL else first + m * again, part, kind)
        used[name] = count = used.get(name, 0) + 1
        names.append(name if count == 1 else f"{name}_{count - 1}")
    return tuple(names)
