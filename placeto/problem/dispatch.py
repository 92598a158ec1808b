"""Dispatch: which of its ready ops a device runs next, and which of its tensors a link sends next.

- "fifo": first ready, first served, as TensorFlow's executor and the published Placeto simulator did.
- "priority": the ready op with the longest remaining path first. The path has no transfers, so the order is static: it
  does not depend on the placement. A link sends the tensor first whose first consumer comes first in this order. A
  device that has all ops runs the ready ops in the order of the program. Any order takes it equally long, but longest
  path first would run all gradients of weights last, and would keep the tensors that they read until then, recomputed
  activations too.
- "earlier-F": as "priority", but with the remaining path less F times the work of all earlier micro-batches. Longest
  path first runs one op for all micro-batches before the next op, so that the next stage waits for all of them.
- "1f1b": the backward pass first, then the earlier micro-batch, then the longest remaining path: one forward, one
  backward, as PipeDream's pipelines run (Narayanan et al., SOSP 2019). It holds the fewest activations.
- "list": each device runs its list of ops strictly in order, and waits until the next op of the list is ready, as
  streams and generated programs do. Links send tensors in the order in which they are made. If no list is given, it is
  the order of the program.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from placeto.errors import PlacementError
from placeto.problem.cluster import STATIC_ORDERS
from placeto.problem.cluster.cluster import frozen
from placeto.problem.flat import longest_path
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.graph.label_values import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.messages import quote


def priorities(graph: ComputationGraph, dispatch: str, busy_us: np.ndarray) -> np.ndarray:
    """(N,) int64, place of each op in the order of dispatch, from 0 on.

    A static order goes by the longest remaining path, in which each op takes its mean time over the devices. Orders
    other than "priority" also go by micro-batch, and "1f1b" by pass. Equal ops are in the order of their names. The
    dispatches "fifo" and "list" get the order of the program.

    Args:
        graph: N ops.
        dispatch: one of `DISPATCHES`.
        busy_us: (N, D) microseconds that each op keeps each device busy.
    """
    if dispatch not in STATIC_ORDERS:
        return np.argsort(graph.topological_order)
    mean = busy_us.mean(axis=1)
    path = longest_path(graph, mean, mean)
    keys: tuple[np.ndarray, ...] = (-path,)
    if dispatch != "priority" and (belongs := graph.micro_batches != NO_MICRO_BATCH).any():
        count = int(graph.micro_batches.max()) + 1
        if dispatch == "1f1b":
            forward = np.array([kind not in BACKWARD_PASSES for kind in graph.passes])
            keys = -path, np.where(belongs, graph.micro_batches, count), forward
        else:
            work = mean[belongs].sum() / count  # mean time of one micro-batch, in us
            share = float(dispatch.removeprefix("earlier-"))
            keys = (share * work * np.where(belongs, graph.micro_batches, 0) - path,)
    return np.argsort(np.lexsort((graph.name_rank, *keys)))


def order_alone(graph: ComputationGraph, dispatch: str, priority: np.ndarray) -> np.ndarray:
    """(N,) int64, the order in which a device that has all ops runs them; `priority` (N,) comes from `priorities`.

    Under a static order it is the order of the program: see the module.
    """
    if dispatch == "list":
        return np.argsort(priority)
    if dispatch in STATIC_ORDERS:
        return graph.topological_order
    missing, rank = [len(sources) for sources in graph.reads], graph.name_rank.tolist()
    order = [op for op in range(graph.num_ops) if missing[op] == 0]
    for op in order:  # the list grows in the loop: first ready, first served
        for reader in sorted(graph.readers[op], key=rank.__getitem__):
            missing[reader] -= 1
            if missing[reader] == 0:
                order.append(reader)
    return np.array(order, np.int64)


@lru_cache(maxsize=64)
def fixed_edges(graph: ComputationGraph) -> np.ndarray:
    """(E,) bool, edges that are the same under every placement; cached.

    The others lead into the ops of sums of gradients, and into the op at the parameter's home: lowering changes these.
    """
    sums, moved = gradient_sums(graph), np.zeros(graph.num_ops, bool)
    moved[sums.additions] = moved[sums.home] = True
    return frozen(~moved[graph.edge_dst])


def places(graph: ComputationGraph, order: np.ndarray) -> np.ndarray:
    """(N,) int64, place of each op in an order (N,) of all ops.

    Raises:
        PlacementError: the order is no permutation, or an op comes before an op that it needs; the message names an op.
    """
    array = np.asarray(order)
    count = graph.num_ops
    if array.shape != (count,) or not np.array_equal(np.sort(array), np.arange(count)):
        raise PlacementError(f"an order of {quote(graph.name)} must have each of its {count} ops once")
    place, fixed = np.argsort(array), fixed_edges(graph)
    early = np.flatnonzero(fixed & (place[graph.edge_src] > place[graph.edge_dst]))
    if len(early):
        src, dst = (quote(graph.op_names[ops[early[0]]]) for ops in (graph.edge_src, graph.edge_dst))
        raise PlacementError(f"op {dst} comes before {src}, which it needs: the order contradicts the graph")
    return place


def order_of_lists(graph: ComputationGraph, lists: Sequence[Sequence[int]]) -> np.ndarray:
    """(N,) int64, an order of all ops that agrees with the graph and with the list of each device.

    Raises:
        PlacementError: an op is in no list or in several, or the lists contradict the graph or each other; the message
            names an op.
    """
    arrays = [np.array(ops, np.int64) for ops in lists]
    count = np.bincount(np.concatenate(arrays), minlength=graph.num_ops)
    if (count != 1).any():
        op = int((count != 1).argmax())
        raise PlacementError(
            f"op {quote(graph.op_names[op])} stands {count[op]} times in the lists of devices, not once"
        )
    fixed = fixed_edges(graph)
    src = np.concatenate([graph.edge_src[fixed], *(ops[:-1] for ops in arrays)])
    dst = np.concatenate([graph.edge_dst[fixed], *(ops[1:] for ops in arrays)])
    from placeto.problem.order_kernels import sorted_ops  # here, since it loads numba, and reading a graph needs none

    order = sorted_ops(graph.num_ops, src, dst)
    if len(order) < graph.num_ops:
        op = min(set(range(graph.num_ops)) - set(order.tolist()))
        raise PlacementError(f"op {quote(graph.op_names[op])} would wait for itself: the order contradicts the graph")
    return order
