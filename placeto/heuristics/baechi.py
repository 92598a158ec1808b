"""The placers of Baechi (Jeon et al., SoCC 2020): m-TOPO, m-ETF and m-SCT, known list schedules within memory limits.

Each keeps the better of two placements: with groups kept together, as Baechi does with forward and backward ops, or op
by op. Tensors wait for their link. What we add: devices and links may differ (limits are in proportion to the devices'
memory, times are means over devices and links where none is chosen yet), and m-ETF and m-SCT count parameters first,
tensors only where that has not been enough. So m-ETF is the queueing half of `placeto.heuristics.list_scheduling.etf`.

m-SCT (Hanen and Munier, 1995) starts what can start first, like m-ETF, but each op has at most one favourite child, and
each op is the favourite of at most one parent; from the end of an op until its output would have arrived elsewhere, its
device is *awake*: it starts the favourite, or an *urgent* op, whose inputs could be on all devices by then, and nothing
else. Favourites come from the relaxation of an integer program, over start times s, makespan w and x in [0, 1]:

    minimise w   subject to   s_i + p_i <= w
                              s_i + p_i + c_ij x_ij <= s_j     each edge i -> j
                              sum_j x_ij >= children of i - 1
                              sum_i x_ij >= parents of j - 1

with p_i the time of op i and c_ij that of the transfer, 0 within a group. Child j is the favourite of i if x_ij < 1/2,
which by the sums holds for one child and one parent at most. The program is over ops, since groups may form cycles.

Legend: N ops, T tensors, D devices, K groups, P pairs of producer and consumer, A those of different groups.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from placeto.heuristics.common import demands
from placeto.heuristics.list_kernels import Favourites
from placeto.heuristics.list_scheduling import floating_ops, hard_groups, place_by_start, try_lists, upward_rank
from placeto.problem.grouping.coarsening import transfer_us
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

LP_OPS = 5000
"""Graphs of more ops, or `_LP_PAIRS` times as many pairs, have their favourites by priority: `favourite_children`."""
_LP_PAIRS = 4  # 400 ops with 40,000 pairs take the solver 4 s; captured steps have 1 to 2 pairs an op
_EPSILON = 1e-6  # x below 1/2 by less is 1/2


def try_m_topo(evaluator: Evaluator, seed: int) -> None:
    """m-TOPO: fill devices in topological order, each to its share of the memory (Jeon et al., 2020)."""
    _, demand = demands(evaluator.problem)
    for follow in _variants(evaluator):
        if not evaluator.exhausted:
            evaluator.score_ops(fill_in_order(evaluator.problem, follow, demand))


def try_m_etf(evaluator: Evaluator, seed: int) -> None:
    """m-ETF: always the op that can start first, where it can and there is memory (Jeon et al., 2020)."""
    for follow in _variants(evaluator):
        try_lists(evaluator, [partial(place_by_start, evaluator.problem, follow, True)])


def try_m_sct(evaluator: Evaluator, seed: int, most_ops: int = LP_OPS, share: float = 1.0) -> None:
    """m-SCT: m-ETF, but devices wait for favourite children from a linear program (Jeon et al., 2020).

    Each linear program may have so many ops, `_LP_PAIRS` times as many pairs, and such a share of the time left.
    """
    problem = evaluator.problem
    for follow in _variants(evaluator):
        if evaluator.exhausted:
            return
        limit = evaluator.seconds_limit
        left = None if limit is None else max(1e-3, share * (limit - evaluator.seconds))  # 0 would be no limit
        favourites = favourite_children(problem, follow, left, most_ops)
        try_lists(evaluator, [partial(place_by_start, problem, follow, True, favourites=favourites)])


def _variants(evaluator: Evaluator) -> tuple[np.ndarray, np.ndarray]:
    """(N,) what stays together: the groups, and only what the graph demands."""
    return evaluator.groups.group, hard_groups(evaluator.problem)


def fill_in_order(problem: PlacementProblem, follow: np.ndarray, demand: np.ndarray) -> np.ndarray:
    """Placement (N,) by m-TOPO: groups in topological order of their first ops, on one device after the other.

    A device takes its share of the total demand and once the largest group's (for equal devices total / D + largest),
    but never more than its memory. What is left over then goes where there is most room.

    Args:
        problem: what to place.
        follow: (N,) group of each op.
        demand: (N,) bytes that each op needs for good.
    """
    memory = problem.cluster.memory.astype(np.float64)
    size = np.bincount(follow, weights=demand)  # (K,)
    cap = np.minimum(size.sum() * memory / memory.sum() + size.max(), memory)
    first = _first_use(problem, follow)
    used, home, device = np.zeros(len(memory)), np.zeros(len(size), np.int64), 0
    for group in np.argsort(first, kind="stable").tolist():
        while device < len(memory) - 1 and used[device] + size[group] > cap[device]:
            device += 1
        full = used[device] + size[group] > cap[device]
        home[group] = (memory - used).argmax() if full else device
        used[home[group]] += size[group]
    return home[follow]


def _first_use(problem: PlacementProblem, follow: np.ndarray) -> np.ndarray:
    """(K,) the topological position of each group's first op; of one that floats, that of the first which needs it."""
    graph = problem.graph
    floats, _ = floating_ops(problem, follow)
    needed = np.where(floats, problem.num_ops, graph.position)
    edges = np.flatnonzero(floats[graph.edge_src])
    for edge in edges[np.argsort(-graph.position[graph.edge_src[edges]], kind="stable")].tolist():
        src, dst = graph.edge_src[edge], graph.edge_dst[edge]
        needed[src] = min(needed[src], needed[dst])
    first = np.full(follow.max() + 1, problem.num_ops)
    np.minimum.at(first, follow, needed)
    return first


def favourite_children(
    problem: PlacementProblem, follow: np.ndarray, seconds: float | None = None, most_ops: int = LP_OPS
) -> Favourites:
    """Favourite child of each op, and for how long its device waits: the transfer, over the mean link.

    Graphs of more than `most_ops` ops or `_LP_PAIRS` times as many pairs, and those that `seconds` are too short for,
    do without the linear program: pairs become favourites by falling transfer + upward rank of the child, as long as
    neither is taken.

    Args:
        problem: what to place.
        follow: (N,) group of each op; children of the same group are no favourites, since they follow anyway, nor
            are those of ops that float (see `floating_ops`), which have no device that could wait.
        seconds: time limit of the solver; None = no limit.
        most_ops: of a graph for which the program is solved; it may have `_LP_PAIRS` times as many pairs.
    """
    pairs, transfer = _pairs(problem)
    floats, follow = floating_ops(problem, follow)
    apart = np.flatnonzero((follow[pairs[0]] != follow[pairs[1]]) & ~floats[pairs[0]])  # (A,)
    chosen = None
    if len(apart) > 0 and max(problem.num_ops, pairs.shape[1] / _LP_PAIRS) <= most_ops:
        solution = _relaxation(problem.op_time.mean(axis=1), pairs, transfer, apart, seconds)
        chosen = None if solution is None else apart[solution < 0.5 - _EPSILON]
    if chosen is None:
        chosen = _by_priority(problem, pairs, transfer, apart)
    child, patience = np.full(problem.num_ops, -1), np.zeros(problem.num_ops)
    child[pairs[0, chosen]], patience[pairs[0, chosen]] = pairs[1, chosen], transfer[chosen]
    return Favourites(child, patience)


@lru_cache(maxsize=16)
def _pairs(problem: PlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """(2, P) producers and consumers, and (P,) microseconds that their tensors travel, each tensor once; cached."""
    graph = problem.graph
    order = np.lexsort((graph.edge_tensor, graph.edge_dst, graph.edge_src))
    src, dst, tensor = graph.edge_src[order], graph.edge_dst[order], graph.edge_tensor[order]
    other_pair = (np.diff(src, prepend=-1) != 0) | (np.diff(dst, prepend=-1) != 0)
    reads = other_pair | (np.diff(tensor, prepend=-1) != 0)
    where = np.cumsum(other_pair)[reads] - 1
    return np.stack([src[other_pair], dst[other_pair]]), np.bincount(where, transfer_us(problem)[tensor[reads]])


def _relaxation(
    time: np.ndarray, pairs: np.ndarray, transfer: np.ndarray, apart: np.ndarray, seconds: float | None
) -> np.ndarray | None:
    """(A,) x of the pairs that may be apart, in a solution of the linear program; None if none was found.

    Columns: s (N,), x (A,), w. Rows: edges (P,), ends (N,), then one for each producer and each consumer.
    """
    num_ops, num_pairs, num_apart = len(time), pairs.shape[1], len(apart)
    ops, edges, x = np.arange(num_ops), np.arange(num_pairs), num_ops + np.arange(num_apart)
    end = np.full(num_ops, num_ops + num_apart)
    rows = [edges, edges, apart, num_pairs + ops, num_pairs + ops]
    columns = [pairs[0], pairs[1], x, ops, end]
    values = [np.ones(num_pairs), -np.ones(num_pairs), transfer[apart], np.ones(num_ops), -np.ones(num_ops)]
    limits = [-time[pairs[0]], -time]
    num_rows = num_pairs + num_ops
    for side in pairs[:, apart]:
        _, which, degree = np.unique(side, return_inverse=True, return_counts=True)
        rows.append(num_rows + which)
        columns.append(x)
        values.append(-np.ones(num_apart))
        limits.append(1.0 - degree)
        num_rows += len(degree)
    num_columns = num_ops + num_apart + 1
    index = np.concatenate(rows), np.concatenate(columns)
    upper = np.full(num_columns, np.inf)
    upper[x] = 1.0
    solution = linprog(
        np.arange(num_columns) == num_columns - 1,
        A_ub=coo_array((np.concatenate(values), index), shape=(num_rows, num_columns)).tocsr(),
        b_ub=np.concatenate(limits),
        bounds=np.stack([np.zeros(num_columns), upper], axis=1),
        method="highs-ds",
        options={} if seconds is None else {"time_limit": seconds},
    )
    return solution.x[x] if solution.status == 0 else None


def _by_priority(problem: PlacementProblem, pairs: np.ndarray, transfer: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Pairs without a common parent or child, taken greedily."""
    priority = transfer[apart] + upward_rank(problem)[pairs[1, apart]]
    order = apart[np.argsort(-priority, kind="stable")]
    parents, children, chosen = set[int](), set[int](), []
    for pair, parent, child in zip(order.tolist(), *pairs[:, order].tolist(), strict=True):
        if parent not in parents and child not in children:
            parents.add(parent)
            children.add(child)
            chosen.append(pair)
    return np.array(chosen, np.int64)
