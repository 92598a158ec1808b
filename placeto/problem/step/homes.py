"""Ops of a step that a plan keeps on one device, such as a parameter, its copy in 16 bits and its gradient.

Legend: N ops, K sets of ops.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import NO_MICRO_BATCH


class Homes(NamedTuple):
    """K sets of ops that share a device, such as a parameter with what is made of it and with its gradient."""

    number: np.ndarray  # (N,) the set of each op; -1 for an op that is in none
    first: np.ndarray  # (K,) the first op of each
    weight: np.ndarray  # (K,) its bytes of parameters plus 1; 0 where a micro-batch says which device the set has


@lru_cache(maxsize=16)
def homes_of(graph: ComputationGraph) -> Homes:
    """Return the sets of ops that a plan keeps together, those of no micro-batch in topological order first."""
    number, first, weight = np.full(graph.num_ops, -1), list[int](), list[float]()
    of_colour: dict[int, int] = {}

    def begin(op: int, bytes_: float) -> int:
        first.append(op)
        weight.append(bytes_)
        return len(first) - 1

    free = (graph.micro_batches == NO_MICRO_BATCH) & (graph.num_micro_batches > 1)  # if M is 1, all ops have none
    for op in graph.topological_order[free[graph.topological_order]].tolist():
        colour, source = int(graph.colocation[op]), next((src for src in graph.reads[op] if free[src]), -1)
        if colour >= 0:
            if colour not in of_colour:
                of_colour[colour] = begin(op, graph.param_bytes[op] + 1)
            number[op] = of_colour[colour]
        else:
            number[op] = number[source] if source >= 0 else begin(op, graph.param_bytes[op] + 1)
    for op in np.flatnonzero((graph.colocation >= 0) & (number < 0)).tolist():
        if (colour := int(graph.colocation[op])) not in of_colour:
            of_colour[colour] = begin(op, 0.0)
        number[op] = of_colour[colour]
    return Homes(number, np.array(first, np.int64), np.array(weight))
