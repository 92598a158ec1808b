"""What each layer costs in one micro-batch: times of its passes, bytes that it makes for others, and what it keeps.

Legend: N ops, L layers, D devices, K sets of tensors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.fused_attention import saved
from placeto.problem.graph.gradient_sums import of_no_micro_batch
from placeto.problem.graph.label_values import BACKWARD_PASSES, NO_MICRO_BATCH, TENSORS
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.forward_pass import in_first
from placeto.problem.step.layers import layers

FORWARD, INPUTS, WEIGHTS, SHARED = range(4)
"""The parts of a layer: its forward pass, its backward pass for inputs and that for weights, in one micro-batch; and
its parameters, with what is made from them alone, which all micro-batches share."""


class Part(NamedTuple):
    """The ops of a layer that run together."""

    kind: int  # FORWARD, INPUTS, WEIGHTS or SHARED
    layer: int


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """What each layer costs in one micro-batch."""

    busy_us: np.ndarray  # (3, L, D) us of the forward pass, of the backward pass for inputs, and of that for weights
    launching_us: np.ndarray  # (3, L, D) us in which the host launches their ops
    made: dict[tuple[Part, frozenset[Part]], int]  # (K,) bytes that a part makes, by the other parts that read them:
    # layers that read what is shared do so in their forward pass
    resident: np.ndarray  # (L,) bytes of parameters, gradients and optimizer state, of the whole step
    state: np.ndarray  # (L,) those of the optimizer state alone

    @property
    def us(self) -> np.ndarray:
        """(3, L, D) us of these passes, if each takes at least as long as its launches."""
        return np.maximum(self.busy_us, self.launching_us)


@lru_cache(maxsize=16)
def layer_costs(problem: PlacementProblem, whole: bool, saving: bool = False) -> LayerCosts:
    """Add up the costs of each layer's ops in the first micro-batch, as all micro-batches are alike; cached.

    An op of the backward pass is for inputs if an earlier layer waits for it. Ops of no micro-batch, such as sums of
    gradients, count with the backward pass for weights, an M-th of them in each micro-batch.

    Args:
        problem: has the graph.
        whole: whether modules with parameters stay whole, see `layers`.
        saving: whether the backward pass for weights reads all that the one for inputs reads of the forward pass:
            autograd keeps it until then.
    """
    graph, layer = problem.graph, layers(problem, whole).number
    count, first = graph.num_micro_batches, in_first(graph)
    back = np.array([part in BACKWARD_PASSES for part in graph.passes])
    needed = waited_for(graph, layer, back & first)
    src, dst = graph.edge_src, graph.edge_dst
    kind = np.where(back, np.where(needed, INPUTS, WEIGHTS), FORWARD)
    beside = (graph.micro_batches == NO_MICRO_BATCH) & (count > 1)
    totals = np.zeros((2, 3, int(layer.max()) + 1, problem.num_devices))
    for total, us in zip(totals, (problem.busy_us, problem.launching_us), strict=True):
        np.add.at(total, (kind[first], layer[first]), us[first])
        np.add.at(total, (WEIGHTS, layer[beside]), us[beside] / count)
    shared = of_no_micro_batch(graph) if count > 1 else np.array([each in TENSORS for each in graph.op_types])
    kind[shared] = SHARED
    readers: dict[int, set[Part]] = {}
    parts = [Part(*each) for each in zip(kind.tolist(), layer.tolist(), strict=True)]
    for edge in np.flatnonzero((first | shared)[src] & (first & ~shared)[dst]).tolist():
        readers.setdefault(int(graph.edge_tensor[edge]), set()).add(parts[dst[edge]])
    kept = saved(graph) if saving else np.full(len(src), -1)
    for edge in np.flatnonzero((kept >= 0) & first[dst] & first[graph.producer[kept]]).tolist():
        maker, reader = parts[graph.producer[kept[edge]]], parts[dst[edge]]
        if maker.kind == FORWARD and reader.kind == INPUTS:
            readers.setdefault(int(kept[edge]), set()).add(Part(WEIGHTS, reader.layer))
    made = Counter[tuple[Part, frozenset[Part]]]()
    for tensor, by in readers.items():
        maker = parts[graph.producer[tensor]]
        if maker.kind == SHARED:
            by = {Part(FORWARD, part.layer) for part in by}
        if others := frozenset(by - {maker}):
            made[maker, others] += int(graph.output_bytes[tensor])
    resident, state = (
        np.bincount(layer, weights=each, minlength=totals.shape[2]).astype(np.int64)
        for each in (problem.resident_bytes, graph.state_bytes - graph.trained_bytes)
    )
    return LayerCosts(totals[0], totals[1], dict(made), resident, state)


def waited_for(graph: ComputationGraph, number: np.ndarray, backward: np.ndarray) -> np.ndarray:
    """(N,) bool, the ops of the backward pass that an earlier layer or stage waits for.

    These are the ops whose tensors an earlier one reads, and all that they need in their own layer or stage.

    Args:
        graph: N ops.
        number: (N,) int64, the layer or stage of each op.
        backward: (N,) bool, the ops of the backward pass.
    """
    needed, of_op = [False] * graph.num_ops, number.tolist()  # items of lists take less time than those of arrays
    both = np.flatnonzero(backward[graph.edge_src] & backward[graph.edge_dst])
    place = np.argsort(graph.topological_order)[graph.edge_src[both]]
    edges = both[np.argsort(-place, kind="stable")]
    for source, reader in zip(graph.edge_src[edges].tolist(), graph.edge_dst[edges].tolist(), strict=True):
        earlier, same = of_op[reader] < of_op[source], of_op[reader] == of_op[source]
        needed[source] |= earlier or (needed[reader] and same)
    return np.array(needed, bool)
