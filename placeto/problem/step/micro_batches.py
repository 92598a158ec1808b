"""A step in micro-batches: the graph of one micro-batch, and the graph of all of them, which is made from it.

Legend: N ops of one micro-batch, E edges between them, M micro-batches. A *row* is an op of one micro-batch (row 0 to
N-1), or an op that combines tensors of several micro-batches: c-th addition or join (N+2c), c-th whole gradient
(N+2c+1). Each row is an op of the whole graph for some of the micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import of_no_micro_batch
from placeto.problem.graph.graph_memory import storage
from placeto.problem.graph.label_values import BACKWARD_PASSES, GRADIENT, NO_MICRO_BATCH, TENSORS
from placeto.problem.graph.memory_fields import NOT_HELD
from placeto.problem.graph.op_columns import taken

NO_CALL = -1
"""Number of the call of a module for an op that no call of a module runs."""
_COUNTED_ONCE = ("param_bytes", "trained_bytes", "state_bytes")


@dataclass(frozen=True)
class Combined:
    """A tensor of each micro-batch: gradients of a parameter and losses are added up, outputs of inference joined."""

    output: int  # the number of the tensor among the outputs of a micro-batch
    source: tuple[int, int] | None  # op and output that make the tensor; None if no op does
    record: Mapping[str, Any]  # of the op that adds two such tensors, or joins those of all; without name and inputs
    after: int | None = None  # the last op that has run when the tensor is there, which is then added; None = joined
    parameter: str = ""  # the name of the parameter's op if the tensor is a gradient
    call: int = NO_CALL  # the call of the module that the addition belongs to, as `Step.call`
    calls: int = 0  # as `Step.calls`


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
    combined: tuple[Combined, ...] = ()  # in the order in which additions come
    carried: tuple[Carried, ...] = ()
    trained: tuple[str, ...] = ()  # parameters with a gradient; it is a constant if it isn't among `combined`
    call: np.ndarray | None = None  # (N,) int64, the call of its module that runs an op; None = all `NO_CALL`
    calls: np.ndarray | None = None  # (N,) int64, the calls of this module in a micro-batch; None = all 0
    repeated: np.ndarray | None = None  # (N,) bool, ops that belong to all but that each micro-batch runs; None = none
    unread: frozenset[str] = frozenset()  # of `module_tensors`, names of tensors that no op reads

    @cached_property
    def graph(self) -> ComputationGraph:
        """The graph of all micro-batches, with the chains that add up the gradients.

        The micro-batches come one after the other. Directly after an op that makes a gradient, an op adds it to the sum
        of those of the micro-batches before, as PyTorch does. An op of type "gradient" follows the last addition,
        without cost: it is the whole gradient, and stays with the parameter. Both name the parameter (`gradient_of`).
        The bytes of buffers count once. With one micro-batch, the op that makes a gradient stays with the parameter.
        """
        return _with_homes(self) if self.count == 1 else _Whole(self).graph()

    @property
    def gradients(self) -> dict[str, tuple[str, int] | None]:
        """The op of `graph`, and its output, that is the gradient of each trained parameter; None for a constant."""
        found: dict[str, tuple[str, int] | None] = dict.fromkeys(self.trained)
        for each in self.combined:
            if each.parameter and each.source:
                of_one = self.micro_batch.op_names[each.source[0]], each.source[1]
                found[each.parameter] = of_one if self.count == 1 else (f"{each.parameter}/{GRADIENT}", 0)
        return found

    @cached_property
    def shared(self) -> np.ndarray:
        """(N,) bool, the ops that are there once for all micro-batches."""
        found = of_no_micro_batch(self.micro_batch)
        return found if self.repeated is None else found & ~self.repeated

    @cached_property
    def order(self) -> tuple[np.ndarray, np.ndarray]:
        """Two arrays (ops of `graph`,) int64: the row, and the number of the micro-batch, of each op of `graph`."""
        one, size, shared = self.micro_batch, self.micro_batch.num_ops, self.shared.tolist()
        idle = [op for op, kind in enumerate(one.op_types) if shared[op] and kind in TENSORS and not one.readers[op]]
        following: dict[int | None, list[int]] = {}
        for number, each in enumerate(self.combined):
            following.setdefault(each.after, []).append(size + 2 * number)
        between: list[int] = []  # rows of a micro-batch that is neither the first nor the last one
        end: list[int] = []  # rows of the last one
        for op in range(size):
            for rows in (between, end):
                rows += ([] if shared[op] else [op]) + following.get(op, [])
        wholes = {size + 2 * c: size + 2 * c + 1 for c, each in enumerate(self.combined) if each.parameter}
        end = [row for added in end for row in ((added, wholes[added]) if added in wholes else (added,))]
        parts = [sorted(set(range(size)) - set(idle)), *[between] * (self.count - 2), end][: self.count]
        beside = following.get(None, []) + idle
        rows, numbers = [*chain(*parts), *beside], np.repeat(np.arange(len(parts)), list(map(len, parts)))
        return np.array(rows, np.int64), np.append(numbers, np.zeros(len(beside), np.int64))


def title(module: str, call: int, part: str, kind: str) -> str:
    """Return the name of an op, as far as no other op has it.

    >>> title("encoder.0", 1, "backward", "aten.mm")
    'encoder.0@1/grad/mm'
    """
    of_call, of_part = f"@{call}" if call > 0 else "", "/grad" if part in BACKWARD_PASSES else ""
    return f"{module}{of_call}{of_part}/{kind.rpartition('.')[2]}".lstrip("/")


def _with_homes(step: Step) -> ComputationGraph:
    """The graph of a step with one micro-batch: its gradients are resident, on the devices of their parameters."""
    one, pairs = step.micro_batch, list[tuple[int, int]]()
    resident = one.resident_outputs.copy()
    for each in step.combined:
        if each.parameter and each.source:
            resident[one.output_ptr[each.source[0]] + each.source[1]] = True
            pairs.append((one.index[each.parameter], each.source[0]))
    return replace(
        one,
        micro_batches=np.full(one.num_ops, NO_MICRO_BATCH),
        colocation=_joined(one.colocation.tolist(), pairs),
        resident_outputs=resident,
        held_until=np.where(resident & ~one.resident_outputs, NOT_HELD, one.held_until),
    )


class _Whole:
    """The graph of all micro-batches in the making."""

    def __init__(self, step: Step) -> None:
        self.step, self.one, self.size = step, step.micro_batch, step.micro_batch.num_ops
        self.row, self.number = step.order
        self.like = np.where(self.row < self.size, self.row, -1)  # of each op: the op of one micro-batch, or -1
        beside = 2 * len(step.combined)
        self.shared = np.append(step.shared, np.zeros(beside, bool))
        self.place = np.full((step.count, self.size + beside), -1)  # (M, rows) op of the whole graph, or -1
        self.place[self.number, self.row] = np.arange(len(self.row))
        self.place[:, self.shared] = self.place[0, self.shared]

    def graph(self) -> ComputationGraph:
        """Return the graph."""
        again = (self.like >= 0) & (self.number > 0)  # ops of later micro-batches
        columns, source = taken(self.one, self.like, self._records())
        columns |= {key: np.where(again, 0, columns[key]) for key in _COUNTED_ONCE}
        columns["micro_batches"] = np.where(columns["micro_batches"] == NO_MICRO_BATCH, NO_MICRO_BATCH, self.number)
        columns["module_tensors"] = tuple(
            tuple(name for name in names if name not in self.step.unread) if later else names
            for names, later in zip(columns["module_tensors"], again.tolist(), strict=True)
        )
        src, dst, output = self._edges()
        maker = np.repeat(np.arange(len(self.row)), np.diff(columns["output_ptr"]))
        return ComputationGraph(
            name=self.one.name,
            mode=self.one.mode,
            op_names=self._names(columns),
            colocation=self._colocation(),
            held_until=self._held(np.append(self.one.held_until, NOT_HELD)[source], maker),
            edge_src=src,
            edge_dst=dst,
            edge_output=output,
            **columns,
        )

    def _records(self) -> dict[int, Mapping[str, Any]]:
        """Op -> its fields, for ops that combine tensors of several micro-batches."""
        found: dict[int, Mapping[str, Any]] = {}
        for op in np.flatnonzero(self.like < 0).tolist():
            number, is_whole = divmod(int(self.row[op]) - self.size, 2)
            each = self.step.combined[number]
            whole: dict[str, Any] = {"type": GRADIENT, "pass": "backward", "module": each.parameter.rpartition(".")[0]}
            whole |= {"outputs": each.record["outputs"], "resident_outputs": [0]}
            found[op] = {**(whole if is_whole else each.record), "gradient_of": each.parameter}
        return found

    def _edges(self) -> np.ndarray:
        """(3, edges) int64: source, destination and output of the edges, by destination."""
        one, place, count = self.one, self.place, self.step.count
        rank = 2 * (np.arange(one.num_edges) - one.input_ptr[one.edge_dst])  # even numbers: carried ones come between
        there = place[:, one.edge_dst] >= 0  # (M, E)
        there[1:, self.shared[one.edge_dst]] = False
        same = (np.broadcast_to(values, there.shape) for values in (one.edge_output, rank))
        copied = np.stack([place[:, one.edge_src], place[:, one.edge_dst], *same])[:, there]
        beside: list[tuple[int, int, int, int]] = []
        for carried in self.step.carried:
            (op, output), reader = carried.source, place[:, carried.reader]
            beside += [(place[m - 1, op], reader[m], output, 2 * carried.place - 1) for m in range(1, count)]
        for c, each in enumerate(self.step.combined):
            if each.source is None:
                continue
            (op, output), combining = each.source, place[:, self.size + 2 * c]
            if each.after is None:
                beside += [(part, combining[0], output, m) for m, part in enumerate(dict.fromkeys(place[:, op]))]
                continue
            before = place[0, op], output
            for m in range(1, count):
                beside += [(before[0], combining[m], before[1], 0), (place[m, op], combining[m], output, 1)]
                before = combining[m], 0
            if each.parameter:
                beside.append((before[0], place[-1, self.size + 2 * c + 1], 0, 0))
        table = np.append(copied, np.array(beside, np.int64).reshape(-1, 4).T, axis=1)
        return table[:3, np.lexsort((table[3], table[1]))]

    def _held(self, until: np.ndarray, made_by: np.ndarray) -> np.ndarray:
        """(tensors,) int64, the op until which each tensor is held: if all share it, one of the last micro-batch.

        Args:
            until: (tensors,) the ops of one micro-batch.
            made_by: (tensors,) the op that makes each tensor.
        """
        last = np.where(self.shared[self.row], self.step.count - 1, self.number)
        return np.where(until == NOT_HELD, NOT_HELD, self.place[last[made_by], until])

    def _colocation(self) -> np.ndarray:
        """(ops,) int64, groups: each micro-batch has its own, and each parameter one with its gradient.

        Parts of shared tensors are in the groups of the shared ops. Micro-batch 0 has the groups of all else that is
        shared.
        """
        shown, with_shared = storage(self.one), self.shared.copy()
        for tensor in np.flatnonzero(shown != np.arange(len(shown))).tolist():
            with_shared[self.one.producer[tensor]] |= self.shared[self.one.producer[shown[tensor]]]
        group = np.append(self.one.colocation, -1)[self.like]
        apart = np.where(with_shared[self.row], 0, self.number)
        labels = np.where(group >= 0, group * self.step.count + apart, -1)
        _, inverse, members = np.unique(labels, return_inverse=True, return_counts=True)
        labels = np.where((members[inverse] > 1) & (labels >= 0), labels, -1)
        gradients = [(c, each.parameter) for c, each in enumerate(self.step.combined) if each.parameter]
        pairs = [(self.place[0, self.one.index[path]], self.place[-1, self.size + 2 * c + 1]) for c, path in gradients]
        return _joined(labels.tolist(), pairs)

    def _names(self, columns: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the ops, which have these columns: later calls of a module have higher numbers."""
        none, beside = np.full(self.size, NO_CALL), [each for each in self.step.combined for _ in range(2)]
        call = [*(none if self.step.call is None else self.step.call).tolist(), *(each.call for each in beside)]
        calls = [*(none if self.step.calls is None else self.step.calls).tolist(), *(each.calls for each in beside)]
        numbers = self.row.tolist(), self.number.tolist()
        ops = zip(*numbers, columns["modules"], columns["passes"], columns["op_types"], strict=True)
        used: dict[str, int] = {}
        names = []
        for row, number, module, part, kind in ops:
            if kind in TENSORS:
                name = self.one.op_names[row]
            elif kind == GRADIENT and row >= self.size:
                name = f"{beside[row - self.size].parameter}/{GRADIENT}"
            else:
                name = title(module, NO_CALL if call[row] == NO_CALL else call[row] + number * calls[row], part, kind)
            used[name] = count = used.get(name, 0) + 1
            names.append(name if count == 1 else f"{name}_{count - 1}")
        return tuple(names)


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
