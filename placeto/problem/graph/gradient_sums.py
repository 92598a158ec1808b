"""Sums of gradients over micro-batches, and which ops stay on the device of a parameter.

In a step in micro-batches, each micro-batch contributes to the gradient of a parameter. The graph has a chain of ops
that add up these contributions in the order of the micro-batches. At its end is an op of type "gradient", without cost,
at the parameter's home. Each of these ops names the parameter (`gradient_of`). The chain says what is added up. On
which devices, and in which order, follows from the placement: see `placeto.simulator.lowering`.

Legend: N ops, E edges, S sums, C contributions to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from placeto.problem.graph.graph import ComputationGraph
from placeto.problem.graph.label_values import GRADIENT, NO_MICRO_BATCH


@dataclass(frozen=True, eq=False)
class GradientSums:
    """The sums of a graph's gradients. Sum s has the contributions from ``ptr[s]`` to ``ptr[s+1]``."""

    home: np.ndarray  # (S,) int64, the op of type "gradient" at the end of each sum
    ptr: np.ndarray  # (S+1,) int64, offsets of each sum's contributions
    tensor: np.ndarray  # (C,) int64, the tensor that each micro-batch contributes, in the order of the micro-batches
    addition: np.ndarray  # (C,) int64, the op that adds the contribution; -1 for the first one of each sum

    @property
    def additions(self) -> np.ndarray:
        """(C - S,) int64, all ops that add."""
        return self.addition[self.addition >= 0]


@lru_cache(maxsize=64)
def gradient_sums(graph: ComputationGraph) -> GradientSums:
    """Return the sums of a graph that have at least two contributions, as its ops say (`gradient_of`); cached.

    The first addition of a sum reads the first contribution and the second one. Every later addition reads the sum of
    those before it, and then its contribution.
    """
    first, tensors = graph.input_ptr, graph.edge_tensor
    added: dict[str, list[int]] = {}
    homes = []
    for op, parameter in enumerate(graph.gradient_of):
        if parameter and graph.op_types[op] == GRADIENT:
            homes.append(op)
        elif parameter:
            added.setdefault(parameter, []).append(op)
    homes = [home for home in homes if graph.gradient_of[home] in added]
    tensor: list[np.ndarray] = []
    addition, ptr = [], [0]
    for home in homes:
        additions = added[graph.gradient_of[home]]
        tensor += [tensors[first[additions[:1]]], tensors[first[additions] + 1]]
        addition += [-1, *additions]
        ptr.append(len(addition))
    contributed = np.concatenate(tensor) if tensor else np.zeros(0, np.int64)
    return GradientSums(np.array(homes, np.int64), np.array(ptr), contributed, np.array(addition, np.int64))


def of_no_micro_batch(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, ops that need nothing of a micro-batch: parameters, and ops on them alone, such as 16-bit casts."""
    found = (graph.micro_batches == NO_MICRO_BATCH).tolist()
    for op in graph.topological_order.tolist():
        found[op] = found[op] and all(found[source] for source in graph.reads[op])
    return np.array(found, bool)


@lru_cache(maxsize=64)
def contributions(graph: ComputationGraph) -> tuple[tuple[int, int], ...]:
    """Return (the op at the home of a gradient, a tensor that is a part of this gradient), for all such tensors."""
    sums = gradient_sums(graph)
    home, tensor = np.repeat(sums.home, np.diff(sums.ptr)), sums.tensor
    alone = np.array([kind == GRADIENT for kind in graph.op_types], bool)
    alone[sums.home] = False
    edges = np.flatnonzero(alone[graph.edge_dst])
    home, tensor = np.append(home, graph.edge_dst[edges]), np.append(tensor, graph.edge_tensor[edges])
    return tuple(zip(home.tolist(), tensor.tolist(), strict=True))


@lru_cache(maxsize=64)
def colocation_groups(graph: ComputationGraph) -> np.ndarray:
    """(N,) int64, groups as in ``graph.colocation``, joined with further ops that are kept together by choice; cached.

    A captured parameter stays with its first user, since a copy travels to every other device that uses it. The ops of
    a sum of gradients stay with the op of type "gradient". Ops in no group have -1.
    """
    from scipy.sparse import coo_array  # here, since it takes long to load, and reading a graph needs none
    from scipy.sparse.csgraph import connected_components

    members: dict[int, int] = {}
    coloured = ((op, colour) for op, colour in enumerate(graph.colocation.tolist()) if colour >= 0)
    pairs = [(members.setdefault(colour, op), op) for op, colour in coloured]
    pairs += first_users(graph).items()
    sums = gradient_sums(graph)
    homes = np.repeat(sums.home, np.diff(sums.ptr) - 1)  # one for each addition
    ends = np.concatenate([np.array(pairs, np.int64).reshape(-1, 2), np.stack([homes, sums.additions], axis=1)])
    links = coo_array((np.ones(len(ends)), tuple(ends.T)), (graph.num_ops, graph.num_ops))
    part = connected_components(links, directed=False)[1]  # numbered in the order of their first ops
    group = np.full(graph.num_ops, -1)
    kept = (np.bincount(part)[part] > 1) | (graph.colocation >= 0)
    group[kept] = np.unique(part[kept], return_inverse=True)[1]
    group.setflags(write=False)
    return group


def first_users(graph: ComputationGraph) -> dict[int, int]:
    """Return, for each parameter of a captured graph, the first op that computes with it or with a slice of it.

    Ops of the optimizer don't count. Parameters without such an op are left out.
    """
    work = graph.flops + graph.bytes_accessed
    first_user = {}
    for op, kind in enumerate(graph.op_types):
        if kind != "parameter" or not graph.passes[op]:
            continue
        pending, users = [op], []
        while pending:
            shown = pending.pop()
            for reader in set(graph.readers[shown]):
                if work[reader] == 0 and graph.colocation[reader] == graph.colocation[op] >= 0:
                    pending.append(reader)  # a slice of the parameter
                elif graph.passes[reader] != "optimizer":
                    users.append(reader)
        if users:
            first_user[op] = min(users)
    return first_user
