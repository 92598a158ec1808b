"""List scheduling: ops are placed one by one, where an estimate of the schedule says they start or end first.

Each placer keeps the best of four placements: op by op or with groups kept together (a group goes where its first op
does), and tensors waiting for their link, as in the simulator, or not, as in the papers. Ops without time that need
nothing, such as parameters, wait for the first op that needs them: else they would all be placed first, on one device,
and draw the gradients that are colocated with them there.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial

import numba
import numpy as np

from placeto.compiling import compiled
from placeto.heuristics.common import demands, within_memory
from placeto.heuristics.etf_kernel import earliest_start_of_many
from placeto.heuristics.list_kernels import Favourites, Order, earliest_finish, earliest_start, floating
from placeto.problem.graph.gradient_sums import together
from placeto.problem.grouping.coarsening import transfer_us
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

_LOOKS = 500  # ready ops at each step, on the average, from which on heaps are faster
_TINY = 4  # ops of a graph that is only to get both kernels compiled
Listed = tuple[np.ndarray, np.ndarray]
"""A placement (N,) and the order (N,) in which the ops are meant to start."""


def try_heft(evaluator: Evaluator, seed: int) -> None:
    """HEFT: by upward rank, each op where it ends first (Topcuoglu et al., 2002); the best of 4 variants."""
    _best_of_four(evaluator, place_by_finish)


def try_etf(evaluator: Evaluator, seed: int) -> None:
    """ETF: always the op that can start first, where it can (Hwang et al., 1989); the best of 4 variants."""
    _best_of_four(evaluator, place_by_start)


def _best_of_four(evaluator: Evaluator, place: Callable[..., Listed]) -> None:
    problem, groups = evaluator.problem, (evaluator.groups.group, hard_groups(evaluator.problem))
    try_lists(evaluator, [partial(place, problem, follow, wait) for wait in (True, False) for follow in groups])


def try_lists(evaluator: Evaluator, variants: Sequence[Callable[[np.ndarray], Listed]]) -> None:
    """Score the placement that each variant makes under the problem's dispatch, and the best in its own order too.

    First ready first served keeps no orders. `within_memory` tells what a variant is called with.
    """
    best, own, (demand, _) = math.inf, None, demands(evaluator.problem)
    with ThreadPoolExecutor(numba.get_num_threads()) as pool:
        ahead = [pool.submit(variant, demand) for variant in variants if not evaluator.exhausted]
        for variant, first in zip(variants, ahead, strict=False):
            for placement, order in within_memory(evaluator, variant, first.result):
                score = evaluator.score_ops(placement)
                if score < best:
                    best, own = score, (placement, order)
        pool.shutdown(cancel_futures=True)  # the budget is spent
    if own is not None and evaluator.problem.dispatch != "fifo":
        evaluator.score_ops(*own)


def place_by_finish(problem: PlacementProblem, follow: np.ndarray, queueing: bool, demand: np.ndarray) -> Listed:
    """Placement (N,) by HEFT, and the order (N,) in which it means the ops to start.

    Args:
        problem: what to place.
        follow: (N,) group of each op; a group goes where the first of its ops does.
        queueing: whether tensors wait for their link.
        demand: (N,) bytes that each op needs for good.
    """
    return _by_start(problem, *earliest_finish(problem.arrays, _order(problem, follow, demand), queueing))


def place_by_start(
    problem: PlacementProblem,
    follow: np.ndarray,
    queueing: bool,
    demand: np.ndarray,
    favourites: Favourites | None = None,
) -> Listed:
    """The same by ETF; arguments as of `place_by_finish`. Devices wait for favourite children, if there are."""
    if favourites is None:
        favourites = Favourites(np.full(problem.num_ops, -1), np.zeros(problem.num_ops))
    given = problem.arrays, _order(problem, follow, demand), queueing, favourites
    found = earliest_start(*given, _LOOKS * max(0, problem.num_ops - _TINY))
    return _by_start(problem, *(found if len(found[0]) else earliest_start_of_many(*given)))


def _by_start(problem: PlacementProblem, placement: np.ndarray, start_us: np.ndarray) -> Listed:
    """The placement, and the order (N,) of its starts."""
    return placement, np.lexsort((np.argsort(problem.graph.topological_order), start_us))


def _order(problem: PlacementProblem, follow: np.ndarray, demand: np.ndarray) -> Order:
    """What both kernels want."""
    graph = problem.graph
    floats, follow = floating_ops(problem, follow)
    in_ptr = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1))
    followers = np.bincount(follow, weights=demand)
    return Order(upward_rank(problem), follow, followers, floats, in_ptr, graph.edge_src, graph.edge_tensor)


def floating_ops(problem: PlacementProblem, follow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which ops (N,) wait for the first op that needs them: those without time, above which there is no other kind.

    Where such an op is alone in its group, it joins that of what it is made from: the second array, (N,).
    """
    graph = problem.graph
    in_ptr = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1))
    free = (problem.op_time == 0.0).all(axis=1)
    return floating(follow, free, graph.topological_order, in_ptr, graph.edge_src)


@lru_cache(maxsize=16)
def upward_rank(problem: PlacementProblem) -> np.ndarray:
    """(N,) longest path in microseconds from each op's start to the end, with mean op and transfer times; cached."""
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
    """(N,) groups of what is kept together: see `together`; every other op stands for itself. Cached."""
    colocation = together(problem.graph)
    count = colocation.max(initial=-1) + 1
    alone = np.arange(problem.num_ops) + count
    return np.unique(np.where(colocation >= 0, colocation, alone), return_inverse=True)[1].astype(np.int64)
