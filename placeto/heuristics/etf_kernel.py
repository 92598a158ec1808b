"""`earliest_start` of `placeto.heuristics.list_kernels` for graphs in which thousands of ops are ready at a time.

Ready ops wait in heaps for each device, so that a step takes time in the logarithm of their number. Keys of the heaps
are never later than what is true: what has become later or invalid is noticed when it comes first. Where few ops are
ready this takes ten times as long as looking at all of them.

Legend: N ops, D devices, K groups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.by_reference import reference
from placeto.compiling import compiled
from placeto.heuristics.heaps import Heaps, new_heaps, put, put_new, without_first
from placeto.heuristics.list_kernels import (
    Booked,
    Favourites,
    Order,
    arrival_of,
    bind,
    need_of,
    nothing_booked,
    settled,
)
from placeto.problem.flat import FlatProblems


class Ready(NamedTuple):
    """What is known of the ops that are ready.

    The heaps of each kind are for ops that have room on a device, then (from D on) for those that have none, which
    count only where no op has room anywhere. Ops wait in `later` until a device is free when their inputs arrive, then
    in `due`, by rank; in `far` until they have arrived on all devices, then in `near`. The latter two are needed only
    where devices wait for favourites.
    """

    op_of: np.ndarray  # (N,) ops by falling rank, smaller ones first where ranks tie
    place: np.ndarray  # (N,) place of each op among these
    ops: np.ndarray  # (N,) the ready ones, in any order; `number` of them
    seat: np.ndarray  # (N,) place of each op among these, -1 = not ready, or placed
    number: np.ndarray  # (1,) of these
    arrival: np.ndarray  # (N, D) us, when its inputs are on each device, by the last estimate
    latest: np.ndarray  # (N,) us, the latest of these
    need: np.ndarray  # (N,) bytes that placing it takes, at most
    bounds: np.ndarray  # (N,) int64, groups beside its own that placing it would bind
    estimated: np.ndarray  # (N,) int64, how many groups were bound at the last estimate
    parked: np.ndarray  # (N,) bool, whether it ever had no room
    device_free: np.ndarray  # (D,) us
    bindings: np.ndarray  # (1,) how often groups were bound
    found: np.ndarray  # (K+1,) for `need_of`
    met: np.ndarray  # (K+1,) likewise
    heaps: Heaps
    later: np.ndarray  # (2D,) roots of heaps by arrival
    due: np.ndarray  # (2D,) roots of heaps by place
    far: np.ndarray  # (2D,) roots of heaps by the latest arrival; empty where no device waits for favourites
    near: np.ndarray  # (2D,) roots of heaps by place


@compiled()
def earliest_start_of_many(
    flat: FlatProblems, order: Order, queueing: bool, favourites: Favourites
) -> tuple[np.ndarray, np.ndarray]:
    """What `earliest_start` finds: devices (N,) and starts (N,).

    Where an arrival has to be estimated again, because a group was bound while an input of the op floats, that is done
    once the op would be chosen by its last estimate.
    """
    n, d = flat.op_offset[1], flat.device_offset[1]
    booked = nothing_booked(flat, order, queueing)
    home, follow = booked.home, order.follow
    # what had been sent when a group was last bound: estimates are made anew from it
    sent, links = booked.delivered.copy(), booked.link_free.copy()
    then = Booked(booked.finish, booked.placed, home, booked.used, sent, links)
    ready = _none_ready(flat, order, bool((favourites.child >= 0).any()))
    device_free, bindings = ready.device_free, ready.bindings
    starts, sequence = np.zeros(n), np.empty(n, np.int64)
    guest, waits_until = np.full(d, -1), np.zeros(d)  # the child that a device waits for
    missing = flat.num_inputs.copy()
    members = np.argsort(follow, kind="mergesort")
    member_ptr = np.searchsorted(follow[members], np.arange(len(order.demand) + 1))
    told = np.full(n, -1)  # the last group of whose binding an op was told
    bound = np.empty(len(order.demand) + 1, np.int64)
    replayed = 0
    for op in range(n):
        for edge in range(order.in_ptr[op], order.in_ptr[op + 1]):
            if order.floats[order.edge_src[edge]]:
                missing[op] -= 1
    for op in range(n):
        if missing[op] == 0 and not order.floats[op]:
            _enter_first(flat, order, booked, ready, op)
    for step in range(n - order.floats.sum()):
        op, best, best_start = -1, -1, np.inf
        while op < 0:
            best_at, best_is_guest, best, best_start = n, False, -1, np.inf
            for full in range(2):
                for device in range(d):
                    start, at, is_guest = _first_choice(
                        flat, order, booked, ready, device, full, guest[device], waits_until[device], best_start
                    )
                    better = at >= 0 and start < best_start
                    if at >= 0 and start == best_start:
                        if is_guest != best_is_guest:
                            better = is_guest
                        elif at != best_at:
                            better = at < best_at
                        else:
                            same = ready.op_of[at]
                            better = flat.op_time[same * d + device] < flat.op_time[same * d + best]
                    if better:
                        best, best_start, best_at, best_is_guest = device, start, at, is_guest
                if best >= 0:
                    break
            op = ready.op_of[best_at]
            if ready.bounds[op] > 0 and ready.estimated[op] != bindings[0]:
                _estimate(flat, order, then, ready, op)
                op = -1
        _leave(ready, op)
        joins = home[follow[op]] < 0
        if bind(order, booked, op, best, bound, ready.met) > 0:
            bindings[0] += 1
            _replay(flat, order, then, ready, sequence[replayed:step])
            replayed = step
            k = -1 if joins else 0
            while k < 0 or bound[k] >= 0:
                group = follow[op] if k < 0 else bound[k]
                k += 1
                for other in members[member_ptr[group] : member_ptr[group + 1]]:
                    if ready.seat[other] >= 0 and ready.parked[other]:
                        _enter(ready, other, best)
                    if order.floats[other]:
                        for child in flat.out_child[flat.out_ptr[other] : flat.out_ptr[other + 1]]:
                            if ready.seat[child] >= 0 and follow[child] != group and told[child] != group:
                                told[child] = group
                                _tell(flat, order, then, ready, child)
        arrival_of(flat, order, booked, op, best, True)
        sequence[step] = op
        busy = flat.op_time[op * d + best]
        booked.placed[op] = True
        booked.finish[op], starts[op] = best_start + busy, best_start
        device_free[best] = best_start + busy
        if busy > 0.0:
            device_free[best] += flat.overhead_us[best]
        guest[best], waits_until[best] = favourites.child[op], booked.finish[op] + favourites.patience_us[op]
        for child in flat.out_child[flat.out_ptr[op] : flat.out_ptr[op + 1]]:
            missing[child] -= 1
            if missing[child] == 0:
                _enter_first(flat, order, booked, ready, child)
    return settled(flat, order, booked), starts


@compiled(inner=True)
def _none_ready(flat: FlatProblems, order: Order, waits: bool) -> Ready:
    n, d = flat.op_offset[1], flat.device_offset[1]
    by_rank, place = np.argsort(-order.rank, kind="mergesort"), np.empty(n, np.int64)
    for k in range(n):
        place[by_rank[k]] = k
    # an op enters once for each device, then where it had no room, and where a broadcast tensor comes sooner
    most, queues = n * (d + 1), 0
    most += order.floats[order.edge_src].sum() * d + flat.broadcast[0] * len(order.edge_src) * d
    if waits:
        most, queues = 2 * most, 2 * d
    made = Ready(
        op_of=by_rank,
        place=place,
        ops=np.empty(n, np.int64),
        seat=np.full(n, -1),
        number=np.zeros(1, np.int64),
        arrival=np.zeros((n, d)),
        latest=np.zeros(n),
        need=np.zeros(n),
        bounds=np.zeros(n, np.int64),
        estimated=np.zeros(n, np.int64),
        parked=np.zeros(n, np.bool_),
        device_free=np.zeros(d),
        bindings=np.zeros(1, np.int64),
        found=np.empty(len(order.demand) + 1, np.int64),
        met=np.zeros(len(order.demand) + 1, np.int64),
        heaps=new_heaps(most),
        later=np.full(2 * d, -1),
        due=np.full(2 * d, -1),
        far=np.full(queues, -1),
        near=np.full(queues, -1),
    )
    return reference(made)


@compiled(inner=True)
def _enter_first(flat: FlatProblems, order: Order, booked: Booked, ready: Ready, op: int) -> None:
    """An op has become ready."""
    ready.need[op] = need_of(order, booked.home, op, ready.found, ready.met)
    ready.bounds[op] = 0
    while ready.found[ready.bounds[op]] >= 0:
        ready.bounds[op] += 1
    _estimate(flat, order, booked, ready, op)
    ready.seat[op], ready.ops[ready.number[0]] = ready.number[0], op
    ready.number[0] += 1
    _enter_all(order, booked, ready, op)


@compiled(inner=True)
def _leave(ready: Ready, op: int) -> None:
    """An op is placed."""
    ready.number[0] -= 1
    last, seat = ready.ops[ready.number[0]], ready.seat[op]
    ready.ops[seat], ready.seat[last] = last, seat
    ready.seat[op] = -1


@compiled(inner=True)
def _enter(ready: Ready, op: int, device: int) -> None:
    """Let an op wait for a device, for now as one that has room."""
    ready.later[device] = put_new(ready.heaps, ready.later[device], ready.arrival[op, device], ready.place[op])
    if len(ready.far) > 0:
        ready.far[device] = put_new(ready.heaps, ready.far[device], ready.latest[op], ready.place[op])


@compiled(inner=True)
def _enter_all(order: Order, booked: Booked, ready: Ready, op: int) -> None:
    """Let an op wait for all devices that it may go to."""
    home = booked.home[order.follow[op]]
    for device in range(len(ready.device_free)):
        if home < 0 or home == device:
            _enter(ready, op, device)


@compiled(inner=True)
def _estimate(flat: FlatProblems, order: Order, booked: Booked, ready: Ready, op: int) -> None:
    """When the inputs of an op arrive."""
    ready.estimated[op] = ready.bindings[0]
    for device in range(len(ready.device_free)):
        ready.arrival[op, device] = arrival_of(flat, order, booked, op, device, False)
    ready.latest[op] = ready.arrival[op].max()


@compiled(inner=True)
def _tell(flat: FlatProblems, order: Order, then: Booked, ready: Ready, op: int) -> None:
    """A group is bound in which an input of an op floats; if it is the last, this estimate is the op's last."""
    ready.bounds[op] -= 1
    if ready.bounds[op] == 0:
        _estimate(flat, order, then, ready, op)
    if ready.parked[op]:  # it needs less now
        _enter_all(order, then, ready, op)


@compiled(inner=True)
def _replay(flat: FlatProblems, order: Order, then: Booked, ready: Ready, ops: np.ndarray) -> None:
    """Book in `then` what was sent for ops. What is broadcast for them may come sooner to others than was estimated."""
    sent = np.empty(0, np.int64)
    if flat.broadcast[0] == 1:
        count = 0
        for op in ops:
            count += order.in_ptr[op + 1] - order.in_ptr[op]
        sent = np.empty(count, np.int64)
    count = 0
    for op in ops:
        device = then.home[order.follow[op]]
        if flat.broadcast[0] == 1:
            for edge in range(order.in_ptr[op], order.in_ptr[op + 1]):
                away = then.home[order.follow[order.edge_src[edge]]] != device
                if away and then.delivered[order.edge_tensor[edge], device] < 0.0:
                    sent[count] = order.edge_tensor[edge]
                    count += 1
        arrival_of(flat, order, then, op, device, True)
    last = -1
    for k in np.argsort(sent[:count], kind="mergesort"):
        tensor = sent[k]
        if tensor == last:
            continue
        last = tensor
        for child in flat.tensor_child[flat.tensor_ptr[tensor] : flat.tensor_ptr[tensor + 1]]:
            if ready.seat[child] >= 0 and ready.bounds[child] > 0:
                _estimate(flat, order, then, ready, child)
                _enter_all(order, then, ready, child)


@compiled(inner=True)
def _may(flat: FlatProblems, order: Order, booked: Booked, ready: Ready, op: int, device: int, full: int) -> int:
    """Whether an op may start on a device: 0 = never, 1 = yes, 2 = not as long as other ops have room."""
    home = booked.home[order.follow[op]]
    if ready.seat[op] < 0 or (home >= 0 and home != device):
        return 0
    if home == device or full == 1 or booked.used[device] + ready.need[op] <= flat.memory[device]:
        return 1
    ready.need[op] = need_of(order, booked.home, op, ready.found, ready.met)
    return 1 if booked.used[device] + ready.need[op] <= flat.memory[device] else 2


@compiled(inner=True)
def _top(
    flat: FlatProblems, order: Order, booked: Booked, ready: Ready, device: int, full: int, on_all: bool
) -> tuple[float, int]:
    """The earliest start on a device, and the op's place, -1 = none; with `on_all` as if all devices had to have the
    op's inputs.
    """
    num_devices, free, heaps = len(ready.device_free), ready.device_free[device], ready.heaps
    later, due = (ready.far, ready.near) if on_all else (ready.later, ready.due)
    q = full * num_devices + device
    while later[q] >= 0 or due[q] >= 0:
        sooner = later[q] >= 0 and heaps.us[later[q]] <= free
        waits = sooner or due[q] < 0
        node = later[q] if waits else due[q]
        op, us = ready.op_of[heaps.at[node]], heaps.us[node]
        may = _may(flat, order, booked, ready, op, device, full)
        actual = ready.latest[op] if on_all else ready.arrival[op, device]
        if may == 1 and not sooner and (us == actual if waits else actual <= free):
            return (us if waits else free), heaps.at[node]
        if waits:
            later[q] = without_first(heaps, node)
        else:
            due[q] = without_first(heaps, node)
        to = q + num_devices if may == 2 else q
        ready.parked[op] = ready.parked[op] or may == 2
        if may > 0 and actual <= free:
            due[to] = put(heaps, due[to], node, 0.0)
        elif may > 0 and not (waits and us > actual):  # else it came anew when it became sooner
            later[to] = put(heaps, later[to], node, actual)
    return np.inf, -1


@compiled(inner=True)
def _first_choice(
    flat: FlatProblems,
    order: Order,
    booked: Booked,
    ready: Ready,
    device: int,
    full: int,
    child: int,
    until: float,
    best_start: float,
) -> tuple[float, int, bool]:
    """What a device would start first: when, the op's place (-1 = nothing), whether it is the child that it waits for.

    Until it has waited long enough it starts others only once all devices have their inputs. What would start later
    than `best_start` is left out where it takes long to find.
    """
    free, follow, home = ready.device_free[device], order.follow, booked.home
    if child < 0 or booked.placed[child]:
        start, at = _top(flat, order, booked, ready, device, full, False)
        return start, at, False
    own_start, own_at = np.inf, -1
    if _may(flat, order, booked, ready, child, device, full) == 1:
        own_start, own_at = max(ready.arrival[child, device], free), ready.place[child]
    room = booked.used[device] + order.demand[follow[child]] <= flat.memory[device]
    waits = free < until and (home[follow[child]] == device or (home[follow[child]] < 0 and room))
    start, at = _top(flat, order, booked, ready, device, full, waits)
    if waits and at >= 0 and start >= until:
        start, at = np.inf, -1
        if until <= min(best_start, own_start):
            start, at = _after_waiting(flat, order, booked, ready, device, full, child, until)
    if own_at >= 0 and own_start <= start:
        return own_start, own_at, True
    return start, at, False


@compiled(inner=True)
def _after_waiting(
    flat: FlatProblems, order: Order, booked: Booked, ready: Ready, device: int, full: int, child: int, until: float
) -> tuple[float, int]:
    """What a device starts that waits in vain, when and the op's place: it looks at all that is ready."""
    best, best_at = np.inf, -1
    for op in ready.ops[: ready.number[0]]:
        if op != child and _may(flat, order, booked, ready, op, device, full) == 1:
            start, at = max(ready.arrival[op, device], until), ready.place[op]
            if start < best or (start == best and at < best_at):
                best, best_at = start, at
    return best, best_at
