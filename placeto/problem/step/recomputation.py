"""Recomputation: blocks of a model whose activations aren't kept, but computed again for the backward pass.

Chen et al., "Training deep nets with sublinear memory cost", 2016, arXiv 1604.06174. The graph is the one of a model
whose blocks are called through ``torch.utils.checkpoint``: a block keeps its inputs alone. Once its backward pass needs
the first tensor of the forward pass, it runs its forward pass again, as far as the last tensor that it needs.

Legend: N ops, B blocks, M micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from placeto.errors import PlanError
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import BACKWARD_PASSES, TENSORS
from placeto.problem.graph.memory_fields import NOT_HELD
from placeto.problem.graph.module_paths import around, inside
from placeto.problem.graph.op_columns import taken
from placeto.problem.step.forward_pass import ModuleSpan, before_loss, call_of, in_first, in_forward, module_spans

RECOMPUTATION = "recomputation"
_SAVE_NOTHING = {
    "aten.add",
    "aten.sub",
    "aten.neg",
    "aten.cat",
    "aten.stack",
    "aten.clone",
    "aten._to_copy",
    "aten.sum",
    "aten.mean",
}
"""Types of ops whose backward pass reads no tensor of the forward pass."""
_WORTH = 0.1
"""A block frees at least this share of the memory that the largest block frees."""


@lru_cache(maxsize=16)
def recomputed(graph: ComputationGraph, blocks: tuple[str, ...]) -> ComputationGraph:
    """Return the graph of a training step in which some blocks are recomputed in all micro-batches; cached.

    The copies of a block's ops stand before the first op of its backward pass that reads a tensor of the forward pass,
    and wait for the gradient that this op reads.

    Args:
        graph: a captured training step, which says to which pass its ops belong.
        blocks: paths of modules, none inside another.

    Raises:
        PlanError: the graph has no backward pass, or no op of one of the blocks.
    """
    return _Recomputed(graph, blocks).graph() if blocks else graph


class MadeOf(NamedTuple):
    """What a graph with recomputed blocks was made of."""

    graph: ComputationGraph  # without recomputed blocks, N ops
    origin: np.ndarray  # (ops,) int64, the op of that graph which each op is, or repeats
    place: np.ndarray  # (N,) int64, the op which each op of that graph is


_MADE_OF: WeakKeyDictionary[ComputationGraph, MadeOf] = WeakKeyDictionary()


def recomputed_of(graph: ComputationGraph) -> MadeOf | None:
    """Return what `recomputed` has made a graph of; None for other graphs."""
    return _MADE_OF.get(graph)


def captured_hash(graph: ComputationGraph) -> str:
    """Return the hash of a captured graph, or of that which a graph with recomputed blocks was made of."""
    made_of = recomputed_of(graph)
    return (graph if made_of is None else made_of.graph).hash


class _Recomputed:
    """The graph with recomputed blocks in the making."""

    def __init__(self, graph: ComputationGraph, blocks: Sequence[str]) -> None:
        self.one, self.block = graph, block_of(graph, blocks)
        self.backward = np.array([part in BACKWARD_PASSES for part in graph.passes])
        if not self.backward.any():
            raise PlanError(f"{graph.name} says of no op that it is backward: capture it as a training step")
        self.forward = in_forward(graph) & ~self.backward
        self.tensor = np.array([kind in TENSORS for kind in graph.op_types])  # parameters and buffers
        for number, path in enumerate(blocks):
            if not (self.forward & (self.block == number)).any():
                raise PlanError(f"{graph.name} computes nothing in {path!r}, which is to be recomputed")
        self.copies = list[tuple[int, int]]()  # op, and micro-batch of its copy
        self.before = list[int]()  # of each copy: the op before which it stands
        self.copy = dict[tuple[int, int], int]()  # op and micro-batch -> number of its copy, from N on
        self.redirected = dict[int, tuple[int, int]]()  # edge -> the copy that it comes from
        self.awaited = dict[int, int]()  # copy -> the op that it waits for
        self.inputs = dict[int, int]()  # tensor that a block keeps -> the last op of its backward pass that needs it
        for number in range(len(blocks)):
            self._recompute(number)

    def _recompute(self, block: int) -> None:
        """Note the copies of a block's ops, for each micro-batch."""
        graph, saved = self.one, dict[int, list[int]]()
        within, src, dst = self.block == block, graph.edge_src, graph.edge_dst
        for edge in np.flatnonzero(self.forward[src] & within[src] & self.backward[dst] & within[dst]).tolist():
            saved.setdefault(int(graph.micro_batches[dst[edge]]), []).append(edge)
        reading = np.flatnonzero((self.tensor | self.forward)[src] & self.backward[dst] & within[dst])
        program = np.flatnonzero(self.forward & within)
        for micro_batch, edges in saved.items():
            read = reading[graph.micro_batches[dst[reading]] == micro_batch]
            begin, last = int(dst[read].min()), int(dst[edges].max())
            ran = program[graph.micro_batches[program] == micro_batch]
            end = self._end(ran, read)
            needed = set[int](ran[ran < end].tolist())
            pending = [int(src[edge]) for edge in edges]
            for op in ran[ran <= end].tolist():
                pending += graph.reads[op]
            while pending:
                op = pending.pop()
                if self.forward[op] and within[op] and op not in needed:
                    needed.add(op)
                    pending += graph.reads[op]
            for op in self._in_order(needed, micro_batch):
                self.copy[op, micro_batch] = graph.num_ops + len(self.copies)
                self.copies.append((op, micro_batch))
                self.before.append(begin)
                for edge in range(graph.input_ptr[op], graph.input_ptr[op + 1]):
                    if not within[src[edge]]:
                        tensor = int(graph.edge_tensor[edge])
                        self.inputs[tensor] = max(last, self.inputs.get(tensor, last))
                if not needed.intersection(graph.reads[op]):
                    self.awaited[self.copy[op, micro_batch]] = self._gradient(begin, micro_batch)
            self.redirected |= {edge: (int(src[edge]), micro_batch) for edge in edges}

    def _end(self, ran: np.ndarray, read: np.ndarray) -> int:
        """The op before which a block has computed again all that its backward pass reads.

        torch stops there. An op saves a tensor for its backward pass: one that it reads, before it runs, or one that it
        makes. Its backward pass belongs to the same module.

        Args:
            ran: ops of the block in the forward pass of a micro-batch, in program order.
            read: edges from kept tensors to the block's backward pass of this micro-batch.
        """
        graph, readers = self.one, dict[tuple[int, str], int]()
        for op in ran.tolist():
            if graph.op_types[op] not in _SAVE_NOTHING:
                for edge in range(graph.input_ptr[op], graph.input_ptr[op + 1]):
                    readers[int(graph.edge_tensor[edge]), graph.modules[op]] = op
        own = {*ran.tolist()}
        ends = [0]
        for edge in read.tolist():
            maker = int(graph.edge_src[edge])
            saves = readers.get((int(graph.edge_tensor[edge]), graph.modules[graph.edge_dst[edge]]))
            ends.append(saves if saves is not None else maker + 1 if maker in own else 0)
        return max(ends)

    def _in_order(self, needed: set[int], micro_batch: int) -> list[int]:
        """Ops to recompute in the order of the program; those of no micro-batch, as casts, come before their reader."""
        place = {op: float(op) for op in needed}
        for op in sorted(needed, reverse=True):
            readers = [place[reader] for reader in self.one.readers[op] if reader in needed]
            if self.one.micro_batches[op] != micro_batch and readers:
                place[op] = np.nextafter(min(readers), -np.inf)
        return sorted(needed, key=place.__getitem__)

    def _gradient(self, op: int, micro_batch: int) -> int:
        """The op that makes the last gradient which an op reads; the end of the forward pass if it reads none."""
        graph = self.one
        edges = np.arange(graph.input_ptr[op], graph.input_ptr[op + 1])
        signal = graph.output_bytes[graph.edge_tensor[edges]] == 0
        sources = graph.edge_src[edges[self.backward[graph.edge_src[edges]] | signal]]
        if not len(sources):
            sources = np.flatnonzero(self.forward & (graph.micro_batches == micro_batch))
        return int(sources.max())

    def graph(self) -> ComputationGraph:
        """Return the graph."""
        one, size = self.one, self.one.num_ops
        origin = np.append(np.arange(size), [op for op, _ in self.copies]).astype(np.int64)
        order = np.lexsort((np.arange(len(origin)) < size, np.append(np.arange(size), self.before)))
        place = np.argsort(order)  # of each op, and of each copy
        nothing = {"pass": RECOMPUTATION, "param_bytes": 0, "trained_bytes": 0, "state_bytes": 0, "reads": ()}
        given: dict[int, dict[str, Any]] = {
            int(place[copy]): {**nothing, "micro_batch": micro_batch} for (_, micro_batch), copy in self.copy.items()
        }
        signals = dict.fromkeys(self.awaited.values())
        columns, source = taken(one, origin[order], given, place[list(signals)].tolist())
        edges = np.array([*self._edges()], np.int64).reshape(-1, 3)
        src, dst = place[edges[:, 0]], place[edges[:, 1]]
        by_reader = np.argsort(dst, kind="stable")
        made = ComputationGraph(
            name=one.name,
            mode=one.mode,
            op_names=tuple(self._name(number) for number in order.tolist()),
            colocation=self._colocation()[order],
            held_until=self._held(order, place, columns["output_ptr"], source),
            edge_src=src[by_reader],
            edge_dst=dst[by_reader],
            edge_output=edges[by_reader, 2],
            **columns,
        )
        _MADE_OF[made] = MadeOf(one, origin[order], place[:size])
        return made

    def _name(self, number: int) -> str:
        if number < self.one.num_ops:
            return self.one.op_names[number]
        op, micro_batch = self.copies[number - self.one.num_ops]
        shared = micro_batch != self.one.micro_batches[op]
        return f"{self.one.op_names[op]}/again{f' for {micro_batch}' if shared else ''}"

    def _edges(self) -> Iterator[tuple[int, int, int]]:
        """The producer, reader and output of each edge."""
        one, outputs = self.one, np.diff(self.one.output_ptr)
        ends = zip(one.edge_src.tolist(), one.edge_dst.tolist(), one.edge_output.tolist(), strict=True)
        for edge, (src, dst, output) in enumerate(ends):
            yield self.copy[self.redirected[edge]] if edge in self.redirected else src, dst, output
        for (op, micro_batch), copy in self.copy.items():
            for edge in range(one.input_ptr[op], one.input_ptr[op + 1]):
                src = int(one.edge_src[edge])
                again = self.copy.get((src, micro_batch), src) if self.block[src] == self.block[op] else src
                yield again, copy, int(one.edge_output[edge])
            if copy in self.awaited:
                yield self.awaited[copy], copy, int(outputs[self.awaited[copy]])

    def _colocation(self) -> np.ndarray:
        """(ops and copies,) int64, groups; copies of ops of one group are in a group of their own, without these."""
        one, beside = self.one, dict[tuple[int, int], list[int]]()
        for (op, micro_batch), copy in self.copy.items():
            if one.colocation[op] >= 0:
                beside.setdefault((int(one.colocation[op]), micro_batch), []).append(copy)
        groups = np.append(one.colocation, np.full(len(self.copies), -1))
        several = [members for members in beside.values() if len(members) > 1]
        for group, members in enumerate(several, start=int(one.colocation.max(initial=-1)) + 1):
            groups[members] = group
        return groups

    def _held(self, order: np.ndarray, place: np.ndarray, ptr: np.ndarray, source: np.ndarray) -> np.ndarray:
        """(tensors,) int64, the op until whose end each tensor is held.

        What a recomputed block holds for its backward pass is its copy, and its inputs, until it needs no copy.
        """
        one, size = self.one, self.one.num_ops
        until, uncached = one.held_until.copy(), self._uncached()
        for tensor, op in self.inputs.items():
            until[tensor] = max(until[tensor], op)
        until = np.append(until, NOT_HELD)[source]
        held = np.where(until == NOT_HELD, NOT_HELD, place[until])
        maker = order[np.repeat(np.arange(len(order)), np.diff(ptr))]
        again = {op for op, _ in self.copies}
        for tensor in np.flatnonzero(until != NOT_HELD).tolist():
            last, made_by = int(until[tensor]), int(maker[tensor])
            if made_by < size:
                if made_by in again and self.backward[last] and self.block[last] == self.block[made_by]:
                    kept_for = self.inputs.get(int(source[tensor]), uncached.get(made_by))
                    held[tensor] = NOT_HELD if kept_for is None else place[kept_for]
            else:
                micro_batch = self.copies[made_by - size][1]
                copy = self.copy.get((last, micro_batch))
                own = self.backward[last] and one.micro_batches[last] == micro_batch
                held[tensor] = held[tensor] if own else NOT_HELD if copy is None else place[copy]
        return held

    def _uncached(self) -> dict[int, int]:
        """Casts of parameters, which autocast keeps for further readers -> the op at whose end it frees them."""
        one, casts = self.one, _casts(self.one, np.flatnonzero(self.forward))
        until = [int(one.held_until[tensor]) for op in casts for tensor in range(*one.output_ptr[op : op + 2])]
        ends = [op for op in until if op != NOT_HELD and not self.backward[op]]
        return dict.fromkeys(casts, max(ends or np.flatnonzero(self.forward).tolist()))


def _casts(graph: ComputationGraph, ops: np.ndarray) -> list[int]:
    """Return those of the ops that cast parameters to another dtype."""
    casts = [op for op in ops.tolist() if graph.op_types[op] == "aten._to_copy"]
    return [op for op in casts if all(graph.op_types[read] in TENSORS for read in graph.reads[op])]


@lru_cache(maxsize=16)
def recomputable(graph: ComputationGraph) -> tuple[str, ...]:
    """Return the modules that can be recomputed each by itself, in program order: blocks of the model; cached.

    A module that frees more memory than some size is divided into its parts, and no other is. The size is the largest
    with which no block frees more than half of what all free. Smaller blocks would keep more inputs: those of a Llama
    of 4 layers, with its attentions and MLPs apart, needed 25 % more memory than its layers. If there is no such size,
    it is the one for which a micro-batch needs the least memory if all blocks are recomputed, while the largest of them
    runs again. Blocks that free less than `_WORTH` of the largest are left out.
    """
    program = np.flatnonzero(before_loss(graph) & in_first(graph))
    parts = dict[str, dict[str, None]]()
    for module in dict.fromkeys(graph.modules[op] for op in program.tolist()):
        for outer, inner in pairwise(("", *around(module))):
            parts.setdefault(outer, {}).setdefault(inner)
    freed, spans = _freed(graph, program), module_spans(graph, program)
    can = _called_alone(graph, program, spans)

    def blocks(most: int) -> list[str]:
        """The blocks if modules are divided that free more than `most` bytes."""
        chosen, pending = list[str](), [""]
        while pending:
            path = pending.pop()
            if path in can and 0 < freed[path] <= most:
                chosen.append(path)
            else:
                pending += parts.get(path, {})
        return chosen

    def needed(chosen: list[str]) -> int:
        """Bytes more than a micro-batch needs without recomputation."""
        sizes = [freed[path] for path in chosen]
        return max(sizes, default=0) - sum(sizes)

    def is_divided(chosen: list[str]) -> bool:
        sizes = [freed[path] for path in chosen]
        return 2 * max(sizes, default=0) <= sum(sizes)

    choices = [blocks(most) for most in sorted({freed[path] for path in can}, reverse=True)]
    chosen = next(filter(is_divided, filter(None, choices)), min(choices, key=needed, default=[]))
    least = _WORTH * max((freed[path] for path in chosen), default=0)
    return tuple(path for path in sorted(chosen, key=lambda path: spans[path].first) if freed[path] >= least)


def _freed(graph: ComputationGraph, program: np.ndarray) -> Counter[str]:
    """Return the bytes that recomputing each module frees: kept tensors of a micro-batch that nothing outside reads.

    Casts of parameters don't count: autocast keeps them for the whole forward pass.

    Args:
        graph: captured.
        program: (F,) the ops of a micro-batch's forward pass in program order.
    """
    backward = [part in BACKWARD_PASSES for part in graph.passes]
    computed = {*program.tolist()} - {*_casts(graph, program)}
    around_readers, kept = dict[int, list[str]](), set[int]()
    edges = zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), graph.edge_tensor.tolist(), strict=True)
    for src, dst, tensor in edges:
        if src in computed and graph.passes[dst] != RECOMPUTATION:
            common = around_readers.setdefault(tensor, around(graph.modules[src]))
            reader = around(graph.modules[dst])
            around_readers[tensor] = [path for path, other in zip(common, reader, strict=False) if path == other]
            if backward[dst]:
                kept.add(tensor)
    freed = Counter[str]()
    for tensor in kept:
        for path in around_readers[tensor]:
            freed[path] += int(graph.output_bytes[tensor])
    return freed


def _called_alone(graph: ComputationGraph, program: np.ndarray, spans: Mapping[str, ModuleSpan]) -> set[str]:
    """Return the modules that are called once, and can be recomputed.

    Modules are left out that are recomputed already, whose ops stand between those of others, that call modules of
    others, that would compute something else the second time, or that begin or end at a call of a module with
    parameters that is called several times, maybe by others.

    Args:
        graph: captured.
        program: (F,) the ops of a micro-batch's forward pass in program order.
        spans: of the modules in this program.
    """
    with_tensors = {module for module, kind in zip(graph.modules, graph.op_types, strict=True) if kind in TENSORS}
    modules = [graph.modules[op] for op in program.tolist()]
    again = {module for op, module in zip(program.tolist(), modules, strict=True) if call_of(graph, op)} & with_tensors
    left_out = {path for paths in graph.unrepeatable for path in paths}
    for module, part, callers in zip(graph.modules, graph.passes, graph.called_in, strict=True):
        if part == RECOMPUTATION:
            left_out |= {*around(module)}
        for caller in callers:
            left_out |= {path for path in around(caller) if not inside(module, path)}
    return {
        path
        for path, span in spans.items()
        if span.unbroken
        and not span.again
        and path not in left_out
        and not again.intersection(modules[max(span.first - 1, 0) : span.first + 1])
        and not again.intersection(modules[span.last : span.last + 2])
    }


def block_of(graph: ComputationGraph, blocks: Sequence[str]) -> np.ndarray:
    """(N,) int64, the number of the block in which each op is; -1 for ops that are in none."""
    number = {path: place for place, path in enumerate(blocks)}
    inside = dict[str, int]()
    for module in {*graph.modules}:
        inside[module] = next((number[path] for path in around(module) if path in number), -1)
    return np.array([inside[module] for module in graph.modules], np.int64)
