"""Graph files from before ops named the parameter whose gradient they add up (`gradient_of`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placeto.problem.graph.graph import ComputationGraph
from placeto.problem.graph.label_values import ADDITION, GRADIENT, NO_MICRO_BATCH


def with_named_sums(graph: ComputationGraph) -> ComputationGraph:
    """Return a graph with `gradient_of` of its ops; the same graph if it has that, or has no op of type "gradient".

    A sum ends in an op of type "gradient", which is called ``PARAMETER/gradient``. Before it is a chain of additions of
    two tensors that belong to no micro-batch. Nothing else reads what they make.
    """
    homes = [op for op, kind in enumerate(graph.op_types) if kind == GRADIENT]
    if not homes or any(graph.gradient_of):
        return graph
    readers = np.bincount(graph.edge_tensor, minlength=len(graph.output_bytes))
    names = [""] * graph.num_ops
    for home in homes:
        names[home] = graph.op_names[home].removesuffix(f"/{GRADIENT}")
        op, reads = home, 1
        while len(graph.reads[op]) == reads:
            edge = int(graph.input_ptr[op])
            op, reads = int(graph.edge_src[edge]), 2
            if not _adds(graph, op) or readers[graph.edge_tensor[edge]] != 1:
                break
            names[op] = names[home]
    return replace(graph, gradient_of=tuple(names))


def _adds(graph: ComputationGraph, op: int) -> bool:
    """Whether an op adds the contribution of one micro-batch to the sum of those before it."""
    of_none = graph.passes[op] == "backward" and graph.micro_batches[op] == NO_MICRO_BATCH
    two_to_one = len(graph.reads[op]) == 2 and graph.output_ptr[op + 1] - graph.output_ptr[op] == 1
    return bool(of_none and graph.op_types[op] == ADDITION and two_to_one)
