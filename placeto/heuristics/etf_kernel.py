"""The compiled loop of ETF and m-SCT in `placeto.heuristics.list_scheduling`.

Legend: N ops, D devices.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from placeto.heuristics.list_kernels import Booked, Order, arrival_of, bind, need_of, nothing_booked, settled
from placeto.plumbing.array_kernels import NONE
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem

MOST_READY = 500
"""Upper limit of the ready ops that ETF considers at a time, so that it takes time in proportion to the ops."""


class Favourites(NamedTuple):
    """The child that a device waits for after each op, and how long it waits: see `placeto.heuristics.baechi`."""

    child: np.ndarray  # (N,) int64, favourite child of each op, -1 = none
    patience_us: np.ndarray  # (N,) float64, from the end of the op


@compiled(inner=True)
def _precedes(
    flat: FlatProblem, rank: np.ndarray, awaited: np.ndarray, op: int, device: int, rival: int, target: int
) -> bool:
    """Whether an op on a device precedes a rival on its target, if both can start at the same time.

    Children that their device waits for precede others, then goes the rank, the op's time on the device, the number.
    """
    if (op == awaited[device]) != (rival == awaited[target]):
        return op == awaited[device]
    if rank[op] != rank[rival]:
        return rank[op] > rank[rival]
    if op == rival:
        first = op * len(flat.overhead_us)
        return flat.op_time[first + device] < flat.op_time[first + target]
    return op < rival


@compiled(inner=True)
def _estimate(
    flat: FlatProblem, order: Order, booked: Booked, op: int, arrival: np.ndarray, latest: np.ndarray
) -> None:
    """Estimate when an op's inputs are on each device: `arrival` (N, D) us, and `latest` (N,), on all devices."""
    for device in range(arrival.shape[1]):
        arrival[op, device] = arrival_of(flat, order, booked, op, device, False)
    latest[op] = arrival[op].max()


@compiled()
def earliest_start(
    flat: FlatProblem, order: Order, queueing: bool, favourites: Favourites
) -> tuple[np.ndarray, np.ndarray]:
    """ETF; of ops that can start equally early, the one with the greatest upward rank comes first.

    At most `MOST_READY` ready ops are considered at a time, the others wait by their upward rank.

    The arrival of an op's inputs on each device is estimated when the op is first considered, and again whenever a
    group is bound while one of the inputs floats (`unbound`). A device that waits for a favourite child starts nothing
    else in that time, except ops whose inputs are on all devices.

    Returns the device (N,) of each op, and its start (N,) in us by this estimate.
    """
    n, d = len(flat.op_rank), len(flat.overhead_us)
    starts = np.zeros(n)
    booked = nothing_booked(flat, order, queueing)
    placed, home, used, rank, follow = booked.placed, booked.home, booked.used, order.rank, order.follow
    to_bind, last_call = np.empty(len(order.demand) + 1, np.int64), np.zeros(len(order.demand) + 1, np.int64)
    device_free = np.zeros(d)
    awaited, waits_until = np.full(d, -1), np.zeros(d)  # the child that a device waits for
    favoured = np.zeros(n, np.bool_)  # favourite children: with equal starts a device that waits for them prefers them
    favoured[favourites.child[favourites.child >= 0]] = True
    missing = flat.num_inputs.copy()
    ready, need, unbound = np.empty(MOST_READY, np.int64), np.empty(n), np.zeros(n, np.bool_)
    arrival, latest, soonest = np.zeros((n, d)), np.zeros(n), np.zeros(n)  # us; `soonest`: lower bound of the start
    count = 0
    waiting = [(np.inf, n)]  # a heap; this one, which gives the list its type, stays in it
    for op in range(n):
        for edge in range(order.in_ptr[op], order.in_ptr[op + 1]):
            if order.floats[order.edge_src[edge]]:  # it is on every device already
                missing[op] -= 1
        if missing[op] == 0 and not order.floats[op]:
            heapq.heappush(waiting, (-rank[op], op))
    for _ in range(n - order.floats.sum()):
        while count < MOST_READY and len(waiting) > 1:
            entering = heapq.heappop(waiting)[1]
            ready[count] = entering
            count += 1
            need[entering] = need_of(order, home, entering, to_bind, last_call)
            unbound[entering] = to_bind[0] >= 0
            _estimate(flat, order, booked, entering, arrival, latest)
        pick, target, best_start, best_rank = -1, NONE, np.inf, np.inf
        least = device_free.min()
        for full in range(2):  # devices that have room, and if none has, all
            for k in range(count):
                op = ready[k]
                group = follow[op]
                bound_to = home[group]
                # most ops are passed over by a lower bound, without a look at each device: starts only become later
                soon = max(soonest[op], least) if bound_to < 0 else max(arrival[op, bound_to], device_free[bound_to])
                behind = rank[op] < best_rank or (rank[op] == best_rank and op > ready[pick])
                if soon > best_start or (soon == best_start and behind and not favoured[op]):
                    continue
                soonest[op] = np.inf
                for device in range(d):
                    if bound_to >= 0 and device != bound_to:
                        continue
                    start = max(arrival[op, device], device_free[device])
                    soonest[op] = min(soonest[op], start)
                    if bound_to < 0 and full == 0 and used[device] + need[op] > flat.memory[device]:
                        continue
                    child = awaited[device]
                    if child >= 0 and child != op and start < min(waits_until[device], latest[op]):
                        child_home = home[follow[child]]
                        room = used[device] + order.demand[follow[child]] <= flat.memory[device]
                        # the device waits only for a child that may still come to it
                        if not placed[child] and (child_home == device or (child_home < 0 and room)):
                            start = min(waits_until[device], latest[op])
                    tied = start == best_start
                    if start < best_start or (tied and _precedes(flat, rank, awaited, op, device, ready[pick], target)):
                        pick, target, best_start, best_rank = k, device, start, rank[op]
            if pick >= 0:
                break
        op = ready[pick]
        count -= 1
        ready[pick] = ready[count]  # the order of `ready` doesn't matter, as the last tie goes by the ops' numbers
        if bind(order, booked, op, target, to_bind, last_call) > 0:
            for k in range(count):
                other = ready[k]
                if unbound[other]:
                    need[other] = need_of(order, home, other, to_bind, last_call)
                    unbound[other], soonest[other] = to_bind[0] >= 0, 0.0
                    _estimate(flat, order, booked, other, arrival, latest)
        arrival_of(flat, order, booked, op, target, True)
        busy = flat.op_time[op * d + target]
        placed[op] = True
        booked.finish[op], starts[op] = best_start + busy, best_start
        device_free[target] = best_start + busy
        if busy > 0.0:
            device_free[target] += flat.overhead_us[target]
        awaited[target], waits_until[target] = favourites.child[op], booked.finish[op] + favourites.patience_us[op]
        for edge in range(flat.out_ptr[op], flat.out_ptr[op + 1]):
            child = flat.out_child[edge]
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(waiting, (-rank[child], child))
    return settled(flat, order, booked), starts
