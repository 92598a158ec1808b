"""List scheduling: ops are placed one by one, where an estimate of the schedule says they start or end first.

Each placer keeps the best of four placements: op by op or with groups kept together (a group goes where its first op
does), and tensors waiting for their link, as in the simulator, or not, as in the papers.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from placeto.cost import FlatProblems, PlacementProblem
from placeto.grouping_units import transfer_us
from placeto.heuristics.common import run, within_memory
from placeto.placer import Evaluator, PlacementResult


class Favourites(NamedTuple):
    """For which child of its last op a device waits, and how long: see `placeto.heuristics.baechi`."""

    child: np.ndarray  # (N,) int64, favourite child of each op, -1 = none
    patience_us: np.ndarray  # (N,) float64, from the end of the op


def heft(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """HEFT: by upward rank, each op where it ends first (Topcuoglu et al., 2002); the best of 4 variants."""
    return run(try_heft, problem, simulations, seconds, seed)


def etf(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """ETF: always the op that can start first, where it can (Hwang et al., 1989); the best of 4 variants."""
    return run(try_etf, problem, simulations, seconds, seed)


def try_heft(evaluator: Evaluator, seed: int) -> None:
    """The rule behind `heft`."""
    _best_of_four(evaluator, place_by_finish)


def try_etf(evaluator: Evaluator, seed: int) -> None:
    """The rule behind `etf`."""
    _best_of_four(evaluator, place_by_start)


def _best_of_four(evaluator: Evaluator, place: Callable[..., np.ndarray]) -> None:
    problem = evaluator.problem
    for queueing in (True, False):
        for follow in (evaluator.groups.group, hard_groups(problem)):
            within_memory(evaluator, partial(place, problem, follow, queueing))


def place_by_finish(problem: PlacementProblem, follow: np.ndarray, queueing: bool, demand: np.ndarray) -> np.ndarray:
    """Placement (N,) by HEFT.

    Args:
        problem: what to place.
        follow: (N,) group of each op; a group goes where the first of its ops does.
        queueing: whether tensors wait for their link.
        demand: (N,) bytes that each op needs for good.
    """
    return _earliest_finish(*_inputs(problem, follow, queueing, demand))


def place_by_start(
    problem: PlacementProblem,
    follow: np.ndarray,
    queueing: bool,
    demand: np.ndarray,
    favourites: Favourites | None = None,
) -> np.ndarray:
    """Placement (N,) by ETF; arguments as of `place_by_finish`. Devices wait for favourite children, if there are."""
    if favourites is None:
        favourites = Favourites(np.full(problem.num_ops, -1), np.zeros(problem.num_ops))
    inputs = (*_inputs(problem, follow, queueing, demand), favourites)
    return _earliest_start(*inputs)


def _inputs(problem: PlacementProblem, follow: np.ndarray, queueing: bool, demand: np.ndarray) -> tuple[Any, ...]:
    """What both kernels want."""
    graph = problem.graph
    in_ptr = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1))
    followers = np.bincount(follow, weights=demand)
    rank = upward_rank(problem)
    return problem.arrays, rank, follow, followers, queueing, in_ptr, graph.edge_src, graph.edge_tensor


def upward_rank(problem: PlacementProblem) -> np.ndarray:
    """(N,) longest path in microseconds from each op's start to the end, with mean op and transfer times."""
    graph = problem.graph
    by_src = np.argsort(graph.edge_src, kind="stable")
    ptr = np.searchsorted(graph.edge_src[by_src], np.arange(graph.num_ops + 1))
    transfer = transfer_us(problem)[graph.edge_tensor[by_src]]
    return _upward_rank(graph.topological_order, ptr, graph.edge_dst[by_src], transfer, problem.op_time.mean(axis=1))


@njit(cache=True)
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


def hard_groups(problem: PlacementProblem) -> np.ndarray:
    """(N,) groups by the colocation of the graph alone; every other op stands for itself."""
    colocation = problem.graph.colocation
    count = colocation.max(initial=-1) + 1
    alone = np.arange(problem.num_ops) + count
    return np.unique(np.where(colocation >= 0, colocation, alone), return_inverse=True)[1].astype(np.int64)


@njit(cache=True)
def _arrival(
    flat: FlatProblems,
    op: int,
    device: int,
    in_ptr: np.ndarray,
    edge_src: np.ndarray,
    edge_tensor: np.ndarray,
    placement: np.ndarray,
    finish: np.ndarray,
    delivered: np.ndarray,
    link_free: np.ndarray,
    commit: bool,  # book the links
) -> float:
    """When all inputs of an op are on a device; tensors wait for their link, unless `link_free` is empty."""
    num_devices = flat.device_offset[1]
    pair = flat.pair_links[0] == 1
    ready = 0.0
    for edge in range(in_ptr[op], in_ptr[op + 1]):
        parent, tensor = edge_src[edge], edge_tensor[edge]
        source = placement[parent]
        if source == device:
            ready = max(ready, finish[parent])
            continue
        arrival = delivered[tensor, device]
        if arrival < 0.0:
            link = source * num_devices + device
            queue = link if pair else source * num_devices + source
            begin = finish[parent]
            if len(link_free) > 0:
                begin = max(begin, link_free[queue])
            arrival = begin + flat.latency_us[link] + flat.tensor_bytes[tensor] / flat.bandwidth[link]
            if commit:
                if len(link_free) > 0:
                    link_free[queue] = arrival + flat.link_gap_us[0]
                if flat.broadcast[0] == 1:
                    for other in range(num_devices):
                        if delivered[tensor, other] < 0.0:
                            delivered[tensor, other] = arrival
                else:
                    delivered[tensor, device] = arrival
        ready = max(ready, arrival)
    return ready


@njit(cache=True)
def _earliest_finish(
    flat: FlatProblems,
    rank: np.ndarray,
    follow: np.ndarray,
    demand: np.ndarray,
    queueing: bool,
    in_ptr: np.ndarray,
    edge_src: np.ndarray,
    edge_tensor: np.ndarray,
) -> np.ndarray:
    """HEFT with insertion into idle gaps. An op follows the device of the first placed op of its group."""
    n, d = flat.op_offset[1], flat.device_offset[1]
    placement = np.full(n, -1)
    finish = np.zeros(n)
    delivered = np.full((flat.tensor_offset[1], d), -1.0)
    link_free = np.zeros(d * d if queueing else 0)
    used = np.zeros(d)
    home = np.full(len(demand), -1)
    # busy times of each device, sorted by start; `length` of them
    begin, end = np.empty((d, n)), np.empty((d, n))
    length = np.zeros(d, np.int64)

    missing = flat.num_inputs.copy()
    order = _ranked(flat, rank, missing)
    for op in order:
        group = follow[op]
        best, best_start, best_finish = -1, 0.0, np.inf
        for full in range(2):
            for device in range(d):
                if home[group] >= 0 and device != home[group]:
                    continue
                if home[group] < 0 and full == 0 and used[device] + demand[group] > flat.memory[device]:
                    continue
                ready = _arrival(
                    flat, op, device, in_ptr, edge_src, edge_tensor, placement, finish, delivered, link_free, False
                )
                busy = flat.op_time[op * d + device]
                if busy > 0.0:
                    busy += flat.overhead_us[device]
                start = _first_gap(begin[device], end[device], length[device], ready, busy)
                if start + busy < best_finish:
                    best, best_start, best_finish = device, start, start + busy
            if best >= 0:
                break
        if home[group] < 0:
            home[group] = best
            used[best] += demand[group]
        ready = _arrival(flat, op, best, in_ptr, edge_src, edge_tensor, placement, finish, delivered, link_free, True)
        busy = flat.op_time[op * d + best]
        finish_op = best_start + busy
        if busy > 0.0:
            busy += flat.overhead_us[best]
            _book(begin[best], end[best], length[best], best_start, best_start + busy)
            length[best] += 1
        placement[op], finish[op] = best, finish_op
    return placement


@njit(cache=True)
def _ranked(flat: FlatProblems, rank: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """(N,) ops by falling rank, producers first also where ranks tie."""
    n = len(rank)
    level = np.zeros(n, np.int64)
    queue = np.empty(n, np.int64)
    head, tail = 0, 0
    for op in range(n):
        if missing[op] == 0:
            queue[tail] = op
            tail += 1
    while head < tail:
        op = queue[head]
        level[op] = head
        head += 1
        for edge in range(flat.out_ptr[op], flat.out_ptr[op + 1]):
            child = flat.out_child[edge]
            missing[child] -= 1
            if missing[child] == 0:
                queue[tail] = child
                tail += 1
    ranks = rank[queue]
    return queue[np.argsort(-ranks, kind="mergesort")]


@njit(cache=True)
def _first_gap(begin: np.ndarray, end: np.ndarray, length: int, ready: float, busy: float) -> float:
    """Earliest start at or after `ready` of a gap that is long enough."""
    low, high = 0, length  # first booking that ends after `ready`
    while low < high:
        middle = (low + high) // 2
        if end[middle] <= ready:
            low = middle + 1
        else:
            high = middle
    start = ready
    for k in range(low, length):
        if start + busy <= begin[k]:
            return start
        start = max(start, end[k])
    return start


@njit(cache=True)
def _book(begin: np.ndarray, end: np.ndarray, length: int, start: float, stop: float) -> None:
    k = length
    while k > 0 and begin[k - 1] > start:
        begin[k], end[k] = begin[k - 1], end[k - 1]
        k -= 1
    begin[k], end[k] = start, stop


@njit(cache=True)
def _earliest_start(
    flat: FlatProblems,
    rank: np.ndarray,
    follow: np.ndarray,
    demand: np.ndarray,
    queueing: bool,
    in_ptr: np.ndarray,
    edge_src: np.ndarray,
    edge_tensor: np.ndarray,
    favourites: Favourites,
) -> np.ndarray:
    """ETF, ties by upward rank. When an op becomes ready, its arrival on each device is estimated once.

    A device that waits for a favourite child starts nothing else in that time, but what all devices have the inputs of.
    """
    n, d = flat.op_offset[1], flat.device_offset[1]
    placement = np.full(n, -1)
    finish = np.zeros(n)
    delivered = np.full((flat.tensor_offset[1], d), -1.0)
    link_free = np.zeros(d * d if queueing else 0)
    used, device_free = np.zeros(d), np.zeros(d)
    home = np.full(len(demand), -1)
    guest, waits_until = np.full(d, -1), np.zeros(d)  # the child that a device waits for
    missing = flat.num_inputs.copy()
    ready = np.empty(n, np.int64)
    arrival = np.empty((n, d))
    count = 0
    for op in range(n):
        if missing[op] == 0:
            ready[count] = op
            arrival[op] = 0.0
            count += 1
    for _ in range(n):
        chosen, best, best_start = -1, -1, np.inf
        for full in range(2):
            for k in range(count):
                op = ready[k]
                group = follow[op]
                for device in range(d):
                    if home[group] >= 0 and device != home[group]:
                        continue
                    if home[group] < 0 and full == 0 and used[device] + demand[group] > flat.memory[device]:
                        continue
                    start = max(arrival[op, device], device_free[device])
                    child = guest[device]
                    if child >= 0 and child != op and start < min(waits_until[device], arrival[op].max()):
                        group_home = home[follow[child]]
                        room = used[device] + demand[follow[child]] <= flat.memory[device]
                        if placement[child] < 0 and (group_home == device or (group_home < 0 and room)):
                            start = min(waits_until[device], arrival[op].max())
                    better = start < best_start
                    if start == best_start:
                        other = ready[chosen]
                        if (op == child) != (other == guest[best]):
                            better = op == child
                        elif rank[op] != rank[other]:
                            better = rank[op] > rank[other]
                        elif op == other:
                            better = flat.op_time[op * d + device] < flat.op_time[op * d + best]
                        else:
                            better = op < other
                    if better:
                        chosen, best, best_start = k, device, start
            if chosen >= 0:
                break
        op = ready[chosen]
        count -= 1
        ready[chosen] = ready[count]
        group = follow[op]
        if home[group] < 0:
            home[group] = best
            used[best] += demand[group]
        _arrival(flat, op, best, in_ptr, edge_src, edge_tensor, placement, finish, delivered, link_free, True)
        busy = flat.op_time[op * d + best]
        placement[op], finish[op] = best, best_start + busy
        device_free[best] = best_start + busy
        if busy > 0.0:
            device_free[best] += flat.overhead_us[best]
        guest[best], waits_until[best] = favourites.child[op], finish[op] + favourites.patience_us[op]
        for edge in range(flat.out_ptr[op], flat.out_ptr[op + 1]):
            child = flat.out_child[edge]
            missing[child] -= 1
            if missing[child] == 0:
                ready[count] = child
                count += 1
                for device in range(d):
                    arrival[child, device] = _arrival(
                        flat,
                        child,
                        device,
                        in_ptr,
                        edge_src,
                        edge_tensor,
                        placement,
                        finish,
                        delivered,
                        link_free,
                        False,
                    )
    return placement
