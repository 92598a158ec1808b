"""The placers of Baechi (Jeon et al., SoCC 2020): m-TOPO, m-ETF and m-SCT, known list schedules within memory limits.

Each keeps the better of two placements: with groups kept together, as Baechi does with forward and backward ops, or op
by op. Tensors wait for their link. Two things differ from the paper. Devices and links need not be alike: limits are in
proportion to the devices' memory, and times are means over devices and links where none is chosen yet. And m-ETF and
m-SCT count the memory of parameters alone at first, and that of other tensors only if the placement then doesn't fit.
So m-ETF tries those placements of `placeto.heuristics.list_scheduling.try_etf` in which tensors wait for their link.

m-SCT (Hanen and Munier, 1995) always takes the op that can start first, like m-ETF. But each op has at most one
favourite child, and is the favourite of at most one parent. From the end of an op until its output would have arrived
on another device, the op's device is *awake*: it starts the favourite child, or an *urgent* op, whose inputs could be
on all devices by then, and nothing else. Favourites come from the relaxation of an integer program, over start times s,
makespan w and x in [0, 1]:

    minimise w   subject to   s_i + p_i <= w
                              s_i + p_i + c_ij x_ij <= s_j     each edge i -> j
                              sum_j x_ij >= children of i - 1
                              sum_i x_ij >= parents of j - 1

with p_i the time of op i and c_ij that of the transfer, 0 within a group. Child j is the favourite of i if x_ij < 1/2.
Because of the last two sums, at most one child of an op can have such an x, and at most one parent. The program is over
ops, since groups may form cycles.

Legend: N ops, T tensors, D devices, K groups, P pairs of producer and consumer, A pairs whose ops may be apart.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from placeto.heuristics.etf_kernel import Favourites
from placeto.heuristics.list_scheduling import floating_ops, hard_groups, place_by_start, try_lists, upward_rank
from placeto.heuristics.rules import demands
from placeto.problem.grouping.coarsening import transfer_us
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

LP_OPS = 5000
"""Ops of the largest graph whose favourites come from the linear program; see `favourite_children` for larger ones."""
_MOST_ITERATIONS = 4  # of the solver, for each row of the program; programs of captured steps take at most 0.5
_LP_PAIRS = 4  # pairs an op, at most: 400 ops with 40,000 pairs take the solver 4 s; captured steps have 1 to 2 an op
_EPSILON = 1e-6  # a solution x counts as below 1/2 if it is lower by more than this


def try_m_topo(evaluator: Evaluator, seed: int) -> None:
    """m-TOPO: fill devices in topological order, each to its share of the memory (Jeon et al., 2020)."""
    _, demand = demands(evaluator.problem)
    for follow in _variants(evaluator):
        if not evaluator.exhausted:
            evaluator.score_ops(fill_in_order(evaluator.problem, follow, demand))


def try_m_etf(evaluator: Evaluator, seed: int) -> None:
    """m-ETF: always the op that can start first, on the device where it can, within memory (Jeon et al., 2020)."""
    for follow in _variants(evaluator):
        try_lists(evaluator, [partial(place_by_start, evaluator.problem, follow, True)])


def try_m_sct(evaluator: Evaluator, seed: int, most_ops: int = LP_OPS, share: float = 1.0) -> None:
    """m-SCT: m-ETF, but devices wait for favourite children from a linear program (Jeon et al., 2020).

    Args:
        evaluator: scores the placements.
        seed: ignored.
        most_ops: ops of the largest graph for which the linear program is solved; see `favourite_children`.
        share: of the seconds that are left of the budget, the solver's limit for each of the two programs.
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
    """Two groupings (N,) of the ops: the evaluator's groups, and `hard_groups`, in which most ops are alone."""
    return evaluator.groups.group, hard_groups(evaluator.problem)


def fill_in_order(problem: PlacementProblem, follow: np.ndarray, demand: np.ndarray) -> np.ndarray:
    """Placement (N,) by m-TOPO: groups in topological order of their first ops fill one device after the other.

    The limit of a device is its share of the total demand (by its memory) plus the demand of the largest group, but at
    most its memory. With equal devices this is total / D + largest. Once the last device has reached its limit, each
    further group that exceeds it goes to the device with the most free memory.

    Args:
        problem: what to place.
        follow: (N,) group of each op.
        demand: (N,) bytes that each op occupies during the whole step.
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
    """(K,) least topological position of each group's ops; an op that floats has that of the first op that needs it."""
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
    """Find each op's favourite child, and how long its device waits for the child: a transfer over the mean link.

    The linear program is left out for graphs of more than `most_ops` ops or `_LP_PAIRS` x `most_ops` pairs, and has no
    result if `seconds` are too short, or after `_MOST_ITERATIONS` of the solver for each of its rows. Then pairs are
    taken in falling order of transfer time + upward rank of the child, if neither the parent nor the child is in a pair
    yet.

    Args:
        problem: what to place.
        follow: (N,) group of each op. A child of the same group is no favourite, since it is on the device anyway.
            An op that floats (see `floating_ops`) has no favourite, since it has no device that could wait.
        seconds: time limit of the solver; None = no limit.
        most_ops: ops of the largest graph for which the linear program is solved.
    """
    pairs, transfer = _pairs(problem)
    floats, follow = floating_ops(problem, follow)
    separable = np.flatnonzero((follow[pairs[0]] != follow[pairs[1]]) & ~floats[pairs[0]])  # (A,)
    chosen = None
    if len(separable) > 0 and max(problem.num_ops, pairs.shape[1] / _LP_PAIRS) <= most_ops:
        solution = _relaxation(problem.op_time.mean(axis=1), pairs, transfer, separable, seconds)
        chosen = None if solution is None else separable[solution < 0.5 - _EPSILON]
    if chosen is None:
        chosen = _by_priority(problem, pairs, transfer, separable)
    child, patience = np.full(problem.num_ops, -1), np.zeros(problem.num_ops)
    child[pairs[0, chosen]], patience[pairs[0, chosen]] = pairs[1, chosen], transfer[chosen]
    return Favourites(child, patience)


@lru_cache(maxsize=16)
def _pairs(problem: PlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """(2, P) pairs of a producer and a consumer, and (P,) us, transfer time of all tensors between the two; cached."""
    graph = problem.graph
    order = np.lexsort((graph.edge_tensor, graph.edge_dst, graph.edge_src))
    src, dst, tensor = graph.edge_src[order], graph.edge_dst[order], graph.edge_tensor[order]
    other_pair = (np.diff(src, prepend=-1) != 0) | (np.diff(dst, prepend=-1) != 0)
    reads = other_pair | (np.diff(tensor, prepend=-1) != 0)
    where = np.cumsum(other_pair)[reads] - 1
    return np.stack([src[other_pair], dst[other_pair]]), np.bincount(where, transfer_us(problem)[tensor[reads]])


def _relaxation(
    time: np.ndarray, pairs: np.ndarray, transfer: np.ndarray, separable: np.ndarray, seconds: float | None
) -> np.ndarray | None:
    """Solve the linear program: (A,) the x of each pair; None if no optimum was found within the limits.

    Columns of the program: s (N,), x (A,), w. Rows: one for each pair (P), one for each op's end (N), one for each
    producer of a pair that may be apart, and one for each consumer of such a pair.

    Args:
        time: (N,) us, mean over devices.
        pairs: (2, P) producer and consumer.
        transfer: (P,) us.
        separable: (A,) numbers of the pairs that may be apart; in all others the transfer takes no time.
        seconds: time limit of the solver; None = no limit.
    """
    num_ops, num_pairs, num_apart = len(time), pairs.shape[1], len(separable)
    ops, edges, x = np.arange(num_ops), np.arange(num_pairs), num_ops + np.arange(num_apart)
    end = np.full(num_ops, num_ops + num_apart)
    rows = [edges, edges, separable, num_pairs + ops, num_pairs + ops]
    columns = [pairs[0], pairs[1], x, ops, end]
    values = [np.ones(num_pairs), -np.ones(num_pairs), transfer[separable], np.ones(num_ops), -np.ones(num_ops)]
    limits = [-time[pairs[0]], -time]
    num_rows = num_pairs + num_ops
    for side in pairs[:, separable]:
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
        options={"maxiter": _MOST_ITERATIONS * num_rows} | ({} if seconds is None else {"time_limit": seconds}),
    )
    return solution.x[x] if solution.status == 0 else None


def _by_priority(
    problem: PlacementProblem, pairs: np.ndarray, transfer: np.ndarray, separable: np.ndarray
) -> np.ndarray:
    """Choose pairs without a common parent or child greedily, by transfer + upward rank; returns their numbers."""
    priority = transfer[separable] + upward_rank(problem)[pairs[1, separable]]
    order = separable[np.argsort(-priority, kind="stable")]
    parents, children, chosen = set[int](), set[int](), []
    for pair, parent, child in zip(order.tolist(), *pairs[:, order].tolist(), strict=True):
        if parent not in parents and child not in children:
            parents.add(parent)
            children.add(child)
            chosen.append(pair)
    return np.array(chosen, np.int64)
