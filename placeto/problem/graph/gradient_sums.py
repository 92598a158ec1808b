"""Sums of gradients over micro-batches, and what is kept with a parameter.

A step in micro-batches adds what each of them gives to a parameter's gradient. In a graph that is a chain of sums in
the order of the micro-batches, and at its end an op of type "gradient", of no cost, at the parameter's home. The chain
says what is added up; where, and in which order, follows from the placement: see `placeto.simulator.lowering`.

Legend: N ops, E edges, S sums, C contributions to all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from placeto.problem.graph.graph import ComputationGraph
from placeto.problem.graph.labels import NO_MICRO_BATCH

GRADIENT = "gradient"
"""Type of the op that stands for the whole gradient of a parameter where the parameter is."""
_ADDITION = "aten.add"


@dataclass(frozen=True, eq=False)
class GradientSums:
    """What is added up to the gradients of a graph's parameters. Sum s has contributions ``ptr[s]`` to ``ptr[s+1]``."""

    home: np.ndarray  # (S,) int64, op of type "gradient"
    ptr: np.ndarray  # (S+1,) int64
    tensor: np.ndarray  # (C,) int64, what each micro-batch gives, in their order
    addition: np.ndarray  # (C,) int64, the op that adds it; -1 for the first of each sum

    @property
    def additions(self) -> np.ndarray:
        """(C - S,) int64, all ops that add."""
        return self.addition[self.addition >= 0]


@lru_cache(maxsize=64)
def gradient_sums(graph: ComputationGraph) -> GradientSums:
    """The sums of a graph of which at least two micro-batches are part; cached."""
    first, tensors = graph.input_ptr, graph.edge_tensor
    readers = np.bincount(tensors, minlength=len(graph.output_bytes))
    homes, tensor, addition, ptr = [], [], [], [0]
    for home in (op for op, kind in enumerate(graph.op_types) if kind == GRADIENT):
        if first[home + 1] - first[home] != 1:
            continue
        given, added_by = [], []
        edge = int(first[home])
        while True:
            op = int(graph.edge_src[edge])
            if not _adds(graph, op) or readers[tensors[edge]] != 1:
                break
            chained, given_last = int(first[op]), int(first[op]) + 1
            given.append(int(tensors[given_last]))
            added_by.append(op)
            edge = chained
        if given:
            homes.append(home)
            tensor += [int(tensors[edge]), *reversed(given)]
            addition += [-1, *reversed(added_by)]
            ptr.append(len(tensor))
    arrays = (np.array(values, np.int64) for values in (homes, ptr, tensor, addition))
    return GradientSums(*arrays)


def of_no_micro_batch(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, parameters and what is made of them alone, such as copies in 16 bits."""
    found = graph.micro_batches == NO_MICRO_BATCH
    for op in graph.topological_order.tolist():
        found[op] &= bool(found[graph.reads[op]].all())
    return found


def contributions(graph: ComputationGraph) -> Iterable[tuple[int, int]]:
    """The op at the home of each gradient, with each of the tensors that are added up to it."""
    sums = gradient_sums(graph)
    for number, home in enumerate(sums.home.tolist()):
        for tensor in sums.tensor[sums.ptr[number] : sums.ptr[number + 1]].tolist():
            yield home, tensor
    for edge, op in enumerate(graph.edge_dst.tolist()):
        if graph.op_types[op] == GRADIENT and op not in sums.home:
            yield op, int(graph.edge_tensor[edge])


def _adds(graph: ComputationGraph, op: int) -> bool:
    """Whether an op adds what one micro-batch gives to what those before it gave."""
    belongs_to_all = graph.passes[op] == "backward" and graph.micro_batches[op] == NO_MICRO_BATCH
    two_to_one = len(graph.reads[op]) == 2 and graph.output_ptr[op + 1] - graph.output_ptr[op] == 1
    return bool(belongs_to_all and graph.op_types[op] == _ADDITION and two_to_one)


@lru_cache(maxsize=64)
def together(graph: ComputationGraph) -> np.ndarray:
    """(N,) int64, like ``graph.colocation``, with what is better kept together by choice; cached.

    A captured parameter stays with its first user, since a copy travels to every other device that uses it, and sums of
    gradients count as being where the parameter is.
    """
    leader = list(range(graph.num_ops))

    def find(op: int) -> int:
        while leader[op] != op:
            leader[op] = op = leader[leader[op]]
        return op

    def join(one: int, other: int) -> None:
        one, other = sorted((find(one), find(other)))
        leader[other] = one

    members: dict[int, int] = {}
    for op, colour in enumerate(graph.colocation.tolist()):
        if colour >= 0:
            join(members.setdefault(colour, op), op)
    for op, user in first_users(graph).items():
        join(op, user)
    sums = gradient_sums(graph)
    for number, home in enumerate(sums.home.tolist()):
        for addition in sums.addition[sums.ptr[number] + 1 : sums.ptr[number + 1]].tolist():
            join(home, addition)
    roots = [find(op) for op in range(graph.num_ops)]
    sizes = np.bincount(roots, minlength=graph.num_ops)
    numbers: dict[int, int] = {}
    found = [
        numbers.setdefault(root, len(numbers)) if sizes[root] > 1 or graph.colocation[op] >= 0 else -1
        for op, root in enumerate(roots)
    ]
    array = np.array(found, np.int64)
    array.setflags(write=False)
    return array


def first_users(graph: ComputationGraph) -> dict[int, int]:
    """The first op of a captured graph that computes with each parameter, or with a slice of it."""
    work = graph.flops + graph.bytes_accessed
    found = {}
    for op, kind in enumerate(graph.op_types):
        if kind != "parameter" or not graph.passes[op]:
            continue
        pending, users = [op], []
        while pending:
            shown = pending.pop()
            for reader in set(graph.readers[shown]):
                if work[reader] == 0 and graph.colocation[reader] == graph.colocation[op] >= 0:
                    pending.append(reader)  # a slice
                elif graph.passes[reader] != "optimizer":
                    users.append(reader)
        if users:
            found[op] = min(users)
    return found
