"""The layers of a graph in their order. A plan cuts the graph between them.

Legend: N ops, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import networkx as nx
import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.graph.module_paths import LOSS
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.blocks import Blocks, find_blocks
from placeto.problem.step.borders import Borders, find_borders
from placeto.problem.step.recomputation import recomputed_of


@dataclass(frozen=True, eq=False)
class Layers:
    """L layers of a graph, one after the other."""

    graph: ComputationGraph
    busy_us: np.ndarray  # (N,) us, mean time of each op over devices
    number: np.ndarray  # (N,) int64, layer of each op
    work_us: np.ndarray  # (L,) us, ops of all micro-batches, each at its mean time over devices
    parameters: np.ndarray  # (L,) bytes of parameters
    crossing: np.ndarray  # (L-1,) bytes that cross the border before each layer but the first, in one forward pass

    def __len__(self) -> int:
        return len(self.work_us)

    @cached_property
    def borders(self) -> Borders:
        """Where a tool can cut the model between these layers, and why not elsewhere."""
        return find_borders(self.graph, self.number, self.busy_us > 0.0, len(self))

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks of the model, and which of these layers begin with a block."""
        return find_blocks(self.graph, self.number, self.busy_us, len(self))

    def stage(self, borders: Sequence[int]) -> np.ndarray:
        """(N,) int64, the stage of each op, if the layers `borders` are the first of each stage but the first."""
        return np.searchsorted(borders, self.number, side="right")


def layers(problem: PlacementProblem, whole: bool) -> Layers:
    """Divide a graph into layers, between which a plan may cut it; cached, for all dispatches together.

    The forward pass of a micro-batch is cut where it goes on in another module, if at most as many bytes cross the cut
    as the cuts before and after it. No layer reads from a later one. So a recurrent network is cut between steps, or,
    with `whole`, between its cells. The loss is in the last layer. Every other op joins one of these layers:

    - an op whose module is in layers, as of the backward pass: the last of these layers whose tensors it reads, or else
      the last of them, but none that is after a layer of a backward op that it reads from;
    - any other forward op: the last layer that it reads from;
    - any other backward op: the first layer that it reads from;
    - a forward op that a forward op of an earlier layer reads, and a backward op that a backward op of a later layer
      reads: the layer of that reader, so that within a pass data crosses each border in one direction;
    - a parameter, and an op that reads from no layer: the first layer that reads it.

    Args:
        problem: has the graph.
        whole: whether modules with parameters stay whole.
    """
    return _layers(problem.under(problem.cluster.dispatch), whole)


@lru_cache(maxsize=16)
def _layers(problem: PlacementProblem, whole: bool) -> Layers:
    graph, busy = problem.graph, problem.busy_us.mean(axis=1)
    number, crossing = _cut(graph, (busy > 0.0).tobytes(), whole)
    parameters = np.where(np.array(graph.op_types) == "parameter", _bytes_made(graph), 0)
    work_us, held = (np.bincount(number, weights=of) for of in (busy, parameters))
    return Layers(graph, busy, number, work_us, held, crossing)


@lru_cache(maxsize=32)
def _cut(graph: ComputationGraph, takes_time: bytes, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the layer of each op (N,), and the bytes that cross each border (L-1,).

    A graph with recomputed blocks has the layers of the graph that it was made of.

    Args:
        graph: N ops.
        takes_time: (N,) bool, as bytes: whether each op does.
        whole: as in `layers`.
    """
    busy = np.frombuffer(takes_time, bool)
    if (made_of := recomputed_of(graph)) is not None:
        number, crossing = _cut(made_of.graph, busy[made_of.place].tobytes(), whole)
        return number[made_of.origin], crossing
    modules, micro_batch = graph.modules, graph.micro_batches.tolist()
    order = graph.topological_order.tolist()
    backward = [kind in BACKWARD_PASSES for kind in graph.passes]
    producers, consumers = graph.reads, graph.readers
    where = _runs(graph, busy)
    if whole:
        where = _with_whole_modules(graph, where)
    computed = [run for run, module in zip(where, modules, strict=True) if module != LOSS]
    last_before_loss = max(computed, default=0)
    runs_of: dict[str, list[int]] = {}
    for op in order:
        if where[op] >= 0 and where[op] not in (known := runs_of.setdefault(modules[op], [])):
            known.append(where[op])
    for op in order:
        if where[op] >= 0:
            continue
        near = [where[p] for p in producers[op] if where[p] >= 0]
        if runs := runs_of.get(modules[op]):
            own = [where[p] for p in producers[op] if modules[p] == modules[op] and not backward[p] and busy[p]]
            later = [where[p] for p in producers[op] if backward[p] and where[p] >= 0]
            before = [run for run in runs if not later or run <= min(later)]
            where[op] = max([run for run in own if run in before] or before or runs)
        elif near:
            where[op] = min(near) if backward[op] else max(near)
    for op in reversed(order):
        same = (c for c in consumers[op] if backward[c] == backward[op] and micro_batch[c] == micro_batch[op])
        readers = [where[c] for c in same if where[c] >= 0]
        if readers and where[op] >= 0:
            where[op] = max(where[op], *readers) if backward[op] else min(where[op], *readers)
        if where[op] < 0 or graph.op_types[op] == "parameter":
            where[op] = min((where[c] for c in consumers[op] if where[c] >= 0), default=0)
    first = min(max(micro_batch), 0)
    one = [op for op in order if micro_batch[op] == first and not backward[op]]
    members, made = set(one), _bytes_made(graph, np.isin(np.arange(len(graph.output_bytes)), graph.edge_tensor))
    crossing = np.zeros(max(where) + 2, np.int64)  # bytes across the cut before each run, of one micro-batch
    for op in one:
        last = max([where[c] for c in consumers[op] if c in members], default=0)
        if last > where[op] and graph.op_types[op] != "parameter":
            crossing[where[op] + 1] += made[op]
            crossing[last + 1] -= made[op]
    crossing = crossing.cumsum()[1:-1]  # (runs - 1,)
    beside = np.concatenate([[np.inf], crossing, [np.inf]])
    cut = (crossing <= beside[:-2]) & (crossing <= beside[2:])
    cut[last_before_loss:] = False
    return np.concatenate([[0], cut.cumsum()])[where], crossing[cut]


def _bytes_made(graph: ComputationGraph, counted: np.ndarray | bool = True) -> np.ndarray:
    """(N,) int64, bytes of all outputs of each op, or of those that are `counted` (T,)."""
    return np.bincount(graph.producer, graph.output_bytes * counted, graph.num_ops).astype(np.int64)


def _runs(graph: ComputationGraph, busy: np.ndarray) -> list[int]:
    """(N,) number of the run that each op is in: consecutive ops of one module in the forward pass of a micro-batch.

    Only forward ops that have a module and take time (`busy`) are in runs; all other ops have -1, and so have those of
    no micro-batch in a step in micro-batches, such as copies of parameters. Runs are numbered as they first come in
    topological order. Runs of different micro-batches have the same number if they are the same occurrence of the same
    module.
    """
    split = graph.num_micro_batches > 1
    number: dict[tuple[str, int], int] = {}
    seen: dict[int, dict[str, int]] = {}
    now: dict[int, str] = {}
    where = [NO_MICRO_BATCH] * graph.num_ops
    for op in graph.topological_order.tolist():
        module, micro_batch = graph.modules[op], int(graph.micro_batches[op])
        within = micro_batch != NO_MICRO_BATCH or not split
        if within and module and busy[op] and graph.passes[op] not in (*BACKWARD_PASSES, "optimizer"):
            met = seen.setdefault(micro_batch, {})
            if now.get(micro_batch) != module:
                met[module], now[micro_batch] = met.get(module, -1) + 1, module
            where[op] = number.setdefault((module, met[module]), len(number))
    return where


def _with_whole_modules(graph: ComputationGraph, run: list[int]) -> list[int]:
    """Renumber the runs of `_runs` so that all runs of a module that has parameters have one number.

    Runs that then need each other's results also become one. The numbers are in topological order; of runs that may
    come next the earliest comes first.
    """
    number = np.array(run)
    owns = {graph.modules[op] for op in range(graph.num_ops) if graph.op_types[op] == "parameter"}
    first: dict[str, int] = {}
    unit = np.arange(number.max(initial=-1) + 1)
    for op in np.flatnonzero(number >= 0).tolist():
        if (module := graph.modules[op]) in owns:
            first[module] = min(run[op], first.get(module, run[op]))
    for op in np.flatnonzero(number >= 0).tolist():
        unit[run[op]] = first.get(graph.modules[op], run[op])
    reads = nx.DiGraph()
    reads.add_nodes_from(np.unique(unit).tolist())
    known = (number[graph.edge_src] >= 0) & (number[graph.edge_dst] >= 0)
    pairs = np.stack([unit[number[ends[known]]] for ends in (graph.edge_src, graph.edge_dst)], axis=1)
    reads.add_edges_from(np.unique(pairs, axis=0).tolist())
    parts = nx.condensation(reads)
    members = nx.get_node_attributes(parts, "members")
    ordered = nx.lexicographical_topological_sort(parts, key=lambda part: min(members[part]))
    place = {one: position for position, part in enumerate(ordered) for one in members[part]}
    return [place[unit[one].item()] if one >= 0 else NO_MICRO_BATCH for one in run]
