"""List scheduling: ops are placed one by one, each on the device where it starts or ends first by an estimate.

Each placer keeps the best of four placements: op by op or with groups kept together (a group goes where its first op
does), and with tensors that wait for their link, as in the simulator, or don't, as in the papers. Ops that take no time
and need nothing, such as parameters, are placed with the first op that needs them. Otherwise they would all be placed
first, on one device, and so would the gradients that are colocated with them.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np

from placeto.heuristics.etf_kernel import Favourites, earliest_start
from placeto.heuristics.list_kernels import Order, earliest_finish, floating
from placeto.heuristics.rules import within_memory
from placeto.plumbing.compiling import compiled
from placeto.problem.graph.gradient_sums import colocation_groups
from placeto.problem.grouping.coarsening import transfer_us
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

Listed = tuple[np.ndarray, np.ndarray]
"""A placement (N,), and the ops (N,) in the order in which the list schedule starts them."""


def try_heft(evaluator: Evaluator, seed: int) -> None:
    """HEFT: ops by upward rank, each on the device where it ends first (Topcuoglu et al., 2002); best of 4 variants."""
    _best_of_four(evaluator, place_by_finish)


def try_etf(evaluator: Evaluator, seed: int) -> None:
    """ETF: always the op that can start first, on the device where it can (Hwang et al., 1989); best of 4 variants."""
    _best_of_four(evaluator, place_by_start)


def _best_of_four(evaluator: Evaluator, place: Callable[..., Listed]) -> None:
    problem, groups = evaluator.problem, (evaluator.groups.group, hard_groups(evaluator.problem))
    try_lists(evaluator, [partial(place, problem, follow, wait) for wait in (True, False) for follow in groups])


def try_lists(evaluator: Evaluator, variants: Sequence[Callable[[np.ndarray], Listed]]) -> None:
    """Score the placement of each variant under the problem's dispatch, and the best of them in its own order, too.

    The dispatch `fifo` has no orders, so that its own order isn't tried then.

    Args:
        evaluator: scores, and keeps the best.
        variants: each makes a placement from the bytes (N,) that each op occupies; see `within_memory`.
    """
    best, best_list = math.inf, None
    for variant in variants:
        for placement, order in within_memory(evaluator, variant):
            score = evaluator.score_ops(placement)
            if score < best:
                best, best_list = score, (placement, order)
    if best_list is not None and evaluator.problem.dispatch != "fifo":
        evaluator.score_ops(*best_list)


def place_by_finish(problem: PlacementProblem, follow: np.ndarray, queueing: bool, demand: np.ndarray) -> Listed:
    """Placement (N,) by HEFT, and the ops (N,) in the order in which its schedule starts them.

    Args:
        problem: what to place.
        follow: (N,) group of each op; a group goes where the first of its ops does.
        queueing: whether tensors wait for their link.
        demand: (N,) bytes that each op occupies during the whole step.
    """
    return _by_start(problem, *earliest_finish(problem.arrays, _order(problem, follow, demand), queueing))


def place_by_start(
    problem: PlacementProblem,
    follow: np.ndarray,
    queueing: bool,
    demand: np.ndarray,
    favourites: Favourites | None = None,
) -> Listed:
    """Placement (N,) by ETF, or by m-SCT if `favourites` are given, and the ops (N,) in the order of their starts.

    The other arguments are those of `place_by_finish`.
    """
    if favourites is None:
        favourites = Favourites(np.full(problem.num_ops, -1), np.zeros(problem.num_ops))
    return _by_start(problem, *earliest_start(problem.arrays, _order(problem, follow, demand), queueing, favourites))


def _by_start(problem: PlacementProblem, placement: np.ndarray, start_us: np.ndarray) -> Listed:
    """The placement, and the ops (N,) by their starts; ops with equal starts are in topological order."""
    return placement, np.lexsort((np.argsort(problem.graph.topological_order), start_us))


def _order(problem: PlacementProblem, follow: np.ndarray, demand: np.ndarray) -> Order:
    """The `Order` that the kernels of HEFT and ETF take."""
    graph = problem.graph
    floats, follow = floating_ops(problem, follow)
    followers = np.bincount(follow, weights=demand)
    return Order(upward_rank(problem), follow, followers, floats, graph.input_ptr, graph.edge_src, graph.edge_tensor)


def floating_ops(problem: PlacementProblem, follow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which ops float (N,) bool, and the group of each op (N,): see `placeto.heuristics.list_kernels`.

    The groups are those of `follow`, but an op that floats and is alone in its group joins the group of its inputs.
    """
    graph = problem.graph
    free = (problem.op_time == 0.0).all(axis=1)
    follow = np.array(follow)  # an array that is read-only would be another type to numba
    return floating(follow, free, graph.topological_order, graph.input_ptr, graph.edge_src)


@lru_cache(maxsize=16)
def upward_rank(problem: PlacementProblem) -> np.ndarray:
    """(N,) us, longest path from each op's start to the end of the step, by mean op and transfer times; cached."""
    graph = problem.graph
    by_src = np.argsort(graph.edge_src, kind="stable")
    ptr = np.searchsorted(graph.edge_src[by_src], np.arange(graph.num_ops + 1))
    transfer = transfer_us(problem)[graph.edge_tensor[by_src]]
    return _upward_rank(graph.topological_order, ptr, graph.edge_dst[by_src], transfer, problem.op_time.mean(axis=1))


@compiled()
def _upward_rank(
    order: np.ndarray, ptr: np.ndarray, child: np.ndarray, transfer: np.ndarray, time: np.ndarray
) -> np.ndarray:
    rank = np.zeros(len(order))
    for position in range(len(order) - 1, -1, -1):
        op = order[position]
        for edge in range(ptr[op], ptr[op + 1]):
            rank[op] = max(rank[op], transfer[edge] + rank[child[edge]])
        rank[op] += time[op]
    return rank


@lru_cache(maxsize=16)
def hard_groups(problem: PlacementProblem) -> np.ndarray:
    """(N,) group of each op: `colocation_groups`, and every other op is alone in its group; cached."""
    colocation = colocation_groups(problem.graph)
    count = colocation.max(initial=-1) + 1
    alone = np.arange(problem.num_ops) + count
    return np.unique(np.where(colocation >= 0, colocation, alone), return_inverse=True)[1].astype(np.int64)
