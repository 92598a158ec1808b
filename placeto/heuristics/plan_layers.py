"""The layers of a graph in their order. A plan cuts the graph between them.

Legend: N ops, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import networkx as nx
import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.labels import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem


@dataclass(frozen=True)
class Layers:
    """L layers of a graph, one after the other."""

    number: np.ndarray  # (N,) int64, of each op
    work_us: np.ndarray  # (L,) of all micro-batches, a mean over devices
    parameters: np.ndarray  # (L,) bytes of parameters
    crossing: np.ndarray  # (L-1,) bytes that cross the border before each layer but the first, in one forward pass


@lru_cache(maxsize=16)
def layers(problem: PlacementProblem, whole: bool) -> Layers:
    """The layers of a graph, between which a plan may cut it; cached.

    The forward pass of a micro-batch is cut where it goes on in another module, if fewer bytes cross the cut than the
    cuts beside it: no layer reads from a later one. So a recurrent network is cut between steps; where modules with
    parameters are to stay whole it is cut between its cells. What stands in no module goes with the last layer that it
    reads from. An op of the backward pass goes with the ops of its module whose tensors it reads, or with the last ones
    of its module that come before what it reads; without a module, with the first layer that it reads from. Parameters
    go with their first user.
    """
    graph, busy = problem.graph, problem.busy_us.mean(axis=1)
    modules, micro_batch = graph.modules, graph.micro_batches.tolist()
    order = graph.topological_order.tolist()
    backward = [kind in BACKWARD_PASSES for kind in graph.passes]
    producers, consumers = graph.reads, graph.readers
    where = _runs(graph, busy)
    if whole:
        where = _with_whole_modules(graph, where)
    runs_of: dict[str, list[int]] = {}
    for op in order:
        if where[op] >= 0 and where[op] not in (known := runs_of.setdefault(modules[op], [])):
            known.append(where[op])
    for op in order:
        if where[op] >= 0:
            continue
        near = [where[p] for p in producers[op] if where[p] >= 0]
        if runs := runs_of.get(modules[op]):
            own = [where[p] for p in producers[op] if modules[p] == modules[op] and not backward[p] and busy[p] > 0.0]
            later = [where[p] for p in producers[op] if backward[p] and where[p] >= 0]
            before = [run for run in runs if not later or run <= min(later)]
            where[op] = max([run for run in own if run in before] or before or runs)
        elif near:
            where[op] = min(near) if backward[op] else max(near)
    for op in reversed(order):
        if where[op] < 0 or graph.op_types[op] == "parameter":
            where[op] = min((where[c] for c in consumers[op] if where[c] >= 0), default=0)
    first = min(max(micro_batch), 0)
    one = [op for op in order if micro_batch[op] == first and not backward[op]]
    members, made = set(one), _bytes_made(graph)
    crossing = np.zeros(max(where) + 2, np.int64)  # bytes across the cut before each run, of one micro-batch
    for op in one:
        last = max([where[c] for c in consumers[op] if c in members], default=0)
        if last > where[op] and graph.op_types[op] != "parameter":
            crossing[where[op] + 1] += made[op]
            crossing[last + 1] -= made[op]
    crossing = crossing.cumsum()[1:-1]  # (runs - 1,)
    beside = np.concatenate([[np.inf], crossing, [np.inf]])
    cut = (crossing <= beside[:-2]) & (crossing <= beside[2:])
    layer = np.concatenate([[0], cut.cumsum()])[where]
    parameters = np.where(np.array(graph.op_types) == "parameter", made, 0)
    work_us, held = (np.bincount(layer, weights=of) for of in (busy, parameters))
    return Layers(layer, work_us, held, crossing[cut])


def _bytes_made(graph: ComputationGraph) -> np.ndarray:
    """(N,) bytes of all outputs of each op."""
    return np.bincount(graph.producer, weights=graph.output_bytes, minlength=graph.num_ops).astype(np.int64)


def _runs(graph: ComputationGraph, busy: np.ndarray) -> list[int]:
    """Of each op of the forward pass that stands in a module and takes time: which run of ops of one module it is in.

    Runs are numbered in the order of one micro-batch, those of others by module and how often it has come before; -1
    for all other ops.
    """
    number: dict[tuple[str, int], int] = {}
    seen: dict[int, dict[str, int]] = {}
    now: dict[int, str] = {}
    where = [NO_MICRO_BATCH] * graph.num_ops
    for op in graph.topological_order.tolist():
        module, micro_batch = graph.modules[op], int(graph.micro_batches[op])
        if module and busy[op] > 0.0 and graph.passes[op] not in (*BACKWARD_PASSES, "optimizer"):
            met = seen.setdefault(micro_batch, {})
            if now.get(micro_batch) != module:
                met[module], now[micro_batch] = met.get(module, -1) + 1, module
            where[op] = number.setdefault((module, met[module]), len(number))
    return where


def _with_whole_modules(graph: ComputationGraph, run: list[int]) -> list[int]:
    """The same with all runs of a module that has parameters as one, and those as one that then need each other.

    They are numbered so that none reads from a later one; of those that may come next the first run comes first.
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
