"""The forward pass of a captured step: its ops in program order, and the modules that compute it.

Legend: N ops, M micro-batches, F ops of the forward pass of a micro-batch, without the loss and what follows from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from placeto.problem.cluster.cluster import frozen
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import NO_MICRO_BATCH, OPTIMIZER, SHAPE, TENSORS
from placeto.problem.graph.module_paths import LOSS, around

_BACKWARD = re.compile(r"^(@\d+)?/?grad/")  # behind the module in an op's name, for graphs whose ops have no pass
_CALL = re.compile(r"@(\d+)/")
_DRAWS = re.compile(r"rand|bernoulli|dropout|normal|uniform|multinomial|exponential|geometric|cauchy|poisson|binomial")


def in_forward(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, whether an op is in the forward pass of any micro-batch; parameters, buffers and updates are not."""
    forward = np.zeros(graph.num_ops, bool)
    labels = zip(graph.op_names, graph.modules, graph.op_types, graph.passes, strict=True)
    for op, (name, module, kind, label) in enumerate(labels):
        if kind not in TENSORS and not kind.startswith(OPTIMIZER):
            forward[op] = label == "forward" if label else not _BACKWARD.match(name.removeprefix(module))
    return forward


@lru_cache(maxsize=16)
def before_loss(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, the ops of `in_forward` that neither belong to the loss nor follow from it; cached."""
    behind = [module == LOSS for module in graph.modules]
    for src, dst in sorted(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True)):
        behind[dst] |= behind[src]  # ops of a captured graph are in program order
    return frozen(in_forward(graph) & ~np.array(behind))


@lru_cache(maxsize=16)
def tables(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, forward ops of micro-batches that no input, no trained parameter and no random draw reaches; cached.

    Such an op has the same result in each micro-batch, as tables of positions and masks of attention do. A tool can
    compute it anew in each stage that reads it.
    """
    table = before_loss(graph) & (graph.micro_batches != NO_MICRO_BATCH)
    for op in graph.topological_order.tolist():
        own = not inputs_read(graph, op) and not _DRAWS.search(graph.op_types[op])
        table[op] &= own and all(
            table[source] or (graph.micro_batches[source] == NO_MICRO_BATCH and not graph.trained_bytes[source])
            for source in graph.reads[op]
        )
    return frozen(table)


def inputs_read(graph: ComputationGraph, op: int) -> list[str]:
    """Return the names of the module's inputs whose values an op reads, not their shapes alone."""
    return [name for name in graph.module_inputs[op] if not name.endswith(SHAPE)]


def in_first(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, the ops of the first micro-batch; of a graph that isn't in micro-batches, all ops."""
    return graph.micro_batches == min(int(graph.micro_batches.max(initial=NO_MICRO_BATCH)), 0)


def call_of(graph: ComputationGraph, op: int) -> int:
    """How many calls of its module came before the one that an op belongs to."""
    call = _CALL.match(graph.op_names[op].removeprefix(graph.modules[op]))
    return int(call[1]) if call else 0


@dataclass
class ModuleSpan:
    """Where a module, with all modules inside it, stands in the program of a forward pass."""

    first: int  # place of its first op
    last: int  # place of its last op
    ops: int = 0  # number of its ops
    again: bool = True  # whether each module in it that computes is called more than once

    @property
    def unbroken(self) -> bool:
        """Whether no op of another module stands between its ops."""
        return self.last - self.first + 1 == self.ops


def module_spans(graph: ComputationGraph, program: np.ndarray) -> dict[str, ModuleSpan]:
    """Return path -> span of each module that computes in a program (F,), or that contains one which does."""
    latest: dict[str, int] = {}
    for op in program.tolist():
        path = graph.modules[op]
        latest[path] = max(latest.get(path, 0), call_of(graph, op))
    spans: dict[str, ModuleSpan] = {}
    for place, op in enumerate(program.tolist()):
        for module in around(graph.modules[op]):
            span = spans.setdefault(module, ModuleSpan(place, place))
            span.last, span.ops = place, span.ops + 1
            span.again &= latest[graph.modules[op]] > 0
    return spans
