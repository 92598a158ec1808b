"""`earliest_start` of `placeto.heuristics.list_kernels` for graphs in which thousands of ops are ready at a time.

Each device has heaps of ready ops, so that a step takes time in the logarithm of their number. The key of an op in a
heap is never later than the op's true time. An entry whose time has become later, or that is invalid, is corrected when
it is the first of its heap. If few ops are ready, this takes ten times as long as looking at all of them.

Legend: N ops, D devices, K groups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
from placeto.plumbing.array_kernels import stable_argsort
from placeto.plumbing.by_reference import reference
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem


class Ready(NamedTuple):
    """The ops that are ready, and the heaps in which they are.

    Of each kind there is a heap for each device. Those before D have the ops for which the device has room. Those from
    D on have the ops for which it has none; they are used only if no op has room on any device. An op is in `later`, by
    arrival, as long as its inputs arrive on the device after this is free; then in `due`, by rank. It is also in `far`
    as long as its inputs arrive on some device after this one is free, and then in `near`. `far` and `near` are needed
    only if devices wait for favourites. The *place* of an op is its position by rank.
    """

    op_of: np.ndarray  # (N,) ops by falling rank; with equal ranks smaller numbers come first
    place: np.ndarray  # (N,) index of each op in `op_of`
    ops: np.ndarray  # (N,) its first `number[0]` entries are the ready ops, in any order
    seat: np.ndarray  # (N,) index of each op in `ops`, -1 = not ready, or placed
    number: np.ndarray  # (1,) number of ready ops
    arrival: np.ndarray  # (N, D) us, when the op's inputs are on each device, by the last estimate
    latest: np.ndarray  # (N,) us, the op's latest arrival on any device
    need: np.ndarray  # (N,) bytes, upper bound of what placing the op takes
    bounds: np.ndarray  # (N,) int64, number of groups that placing the op would bind, besides its own
    estimated: np.ndarray  # (N,) int64, value of `bindings[0]` at the last estimate
    parked: np.ndarray  # (N,) bool, whether some device ever had no room for the op
    device_free: np.ndarray  # (D,) us, when each device is free
    bindings: np.ndarray  # (1,) number of ops so far whose placing bound groups
    to_bind: np.ndarray  # (K+1,) argument of `need_of`
    last_call: np.ndarray  # (K+1,) argument of `need_of`
    heaps: Heaps  # all nodes
    later: np.ndarray  # (2D,) roots of heaps by arrival
    due: np.ndarray  # (2D,) roots of heaps by place
    far: np.ndarray  # (2D,) roots of heaps by `latest`; empty if no device waits for favourites
    near: np.ndarray  # (2D,) roots of heaps by place; empty if no device waits for favourites


@compiled()
def earliest_start_of_many(
    flat: FlatProblem, order: Order, queueing: bool, favourites: Favourites
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `earliest_start` returns: the device (N,) of each op, and its start (N,) in us.

    If a group is bound while an input of an op floats, the op's arrivals have to be estimated again. This is put off
    until the op would be chosen by its last estimate.
    """
    n, d = len(flat.op_rank), len(flat.overhead_us)
    booked = nothing_booked(flat, order, queueing)
    home, follow = booked.home, order.follow
    # transfers up to the last time that groups were bound: new estimates are made from these
    sent, links = booked.delivered.copy(), booked.link_free.copy()
    at_binding = Booked(booked.finish, booked.placed, home, booked.used, sent, links)
    ready = _none_ready(flat, order, bool((favourites.child >= 0).any()))
    device_free, bindings = ready.device_free, ready.bindings
    starts, sequence = np.zeros(n), np.empty(n, np.int64)
    guest, waits_until = np.full(d, -1), np.zeros(d)  # the child that a device waits for, until when
    missing = flat.num_inputs.copy()
    members = stable_argsort(follow)
    member_ptr = np.searchsorted(follow[members], np.arange(len(order.demand) + 1))
    told = np.full(n, -1)  # the last group for whose binding `_tell` was called for an op
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
                    start, position, is_guest = _first_choice(
                        flat, order, booked, ready, device, full, guest[device], waits_until[device], best_start
                    )
                    better = position >= 0 and start < best_start
                    if position >= 0 and start == best_start:
                        if is_guest != best_is_guest:
                            better = is_guest
                        elif position != best_at:
                            better = position < best_at
                        else:
                            same = ready.op_of[position]
                            better = flat.op_time[same * d + device] < flat.op_time[same * d + best]
                    if better:
                        best, best_start, best_at, best_is_guest = device, start, position, is_guest
                if best >= 0:
                    break
            op = ready.op_of[best_at]
            if ready.bounds[op] > 0 and ready.estimated[op] != bindings[0]:
                _estimate(flat, order, at_binding, ready, op)
                op = -1
        _leave(ready, op)
        joins = home[follow[op]] < 0
        if bind(order, booked, op, best, bound, ready.last_call) > 0:
            bindings[0] += 1
            _replay(flat, order, at_binding, ready, sequence[replayed:step])
            replayed = step
            k = -1 if joins else 0
            while k < 0 or bound[k] >= 0:
                group = follow[op] if k < 0 else bound[k]
                k += 1
                for member in members[member_ptr[group] : member_ptr[group + 1]]:
                    if ready.seat[member] >= 0 and ready.parked[member]:
                        _enter(ready, member, best)
                    if order.floats[member]:
                        for child in flat.out_child[flat.out_ptr[member] : flat.out_ptr[member + 1]]:
                            if ready.seat[child] >= 0 and follow[child] != group and told[child] != group:
                                told[child] = group
                                _tell(flat, order, at_binding, ready, child)
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
def _none_ready(flat: FlatProblem, order: Order, waits: bool) -> Ready:
    n, d = len(flat.op_rank), len(flat.overhead_us)
    by_rank, place = stable_argsort(-order.rank), np.empty(n, np.int64)
    for k in range(n):
        place[by_rank[k]] = k
    # an op enters once for each device, again if it had no room, and again if a broadcast tensor comes sooner
    most, queues = n * (d + 1), 0
    most += order.floats[order.edge_src].sum() * d + flat.broadcast[0] * len(order.edge_src) * d
    if waits:
        most, queues = 2 * most, 2 * d
    ready = Ready(
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
        to_bind=np.empty(len(order.demand) + 1, np.int64),
        last_call=np.zeros(len(order.demand) + 1, np.int64),
        heaps=new_heaps(most),
        later=np.full(2 * d, -1),
        due=np.full(2 * d, -1),
        far=np.full(queues, -1),
        near=np.full(queues, -1),
    )
    return reference(ready)


@compiled(inner=True)
def _enter_first(flat: FlatProblem, order: Order, booked: Booked, ready: Ready, op: int) -> None:
    """Add an op that has become ready."""
    ready.need[op] = need_of(order, booked.home, op, ready.to_bind, ready.last_call)
    ready.bounds[op] = 0
    while ready.to_bind[ready.bounds[op]] >= 0:
        ready.bounds[op] += 1
    _estimate(flat, order, booked, ready, op)
    ready.seat[op], ready.ops[ready.number[0]] = ready.number[0], op
    ready.number[0] += 1
    _enter_all(order, booked, ready, op)


@compiled(inner=True)
def _leave(ready: Ready, op: int) -> None:
    """Remove an op from the ready ops, since it is placed. Its nodes stay in the heaps, and are invalid."""
    ready.number[0] -= 1
    last, seat = ready.ops[ready.number[0]], ready.seat[op]
    ready.ops[seat], ready.seat[last] = last, seat
    ready.seat[op] = -1


@compiled(inner=True)
def _enter(ready: Ready, op: int, device: int) -> None:
    """Put an op into a device's heaps, as one for which the device has room until it is examined."""
    ready.later[device] = put_new(ready.heaps, ready.later[device], ready.arrival[op, device], ready.place[op])
    if len(ready.far) > 0:
        ready.far[device] = put_new(ready.heaps, ready.far[device], ready.latest[op], ready.place[op])


@compiled(inner=True)
def _enter_all(order: Order, booked: Booked, ready: Ready, op: int) -> None:
    """Put an op into the heaps of all devices that it may be placed on."""
    home = booked.home[order.follow[op]]
    for device in range(len(ready.device_free)):
        if home < 0 or home == device:
            _enter(ready, op, device)


@compiled(inner=True)
def _estimate(flat: FlatProblem, order: Order, booked: Booked, ready: Ready, op: int) -> None:
    """Estimate when the inputs of an op arrive on each device."""
    ready.estimated[op] = ready.bindings[0]
    for device in range(len(ready.device_free)):
        ready.arrival[op, device] = arrival_of(flat, order, booked, op, device, False)
    ready.latest[op] = ready.arrival[op].max()


@compiled(inner=True)
def _tell(flat: FlatProblem, order: Order, at_binding: Booked, ready: Ready, op: int) -> None:
    """Note that the group of an input that floats is bound; if it is the last one, make the op's last estimate."""
    ready.bounds[op] -= 1
    if ready.bounds[op] == 0:
        _estimate(flat, order, at_binding, ready, op)
    if ready.parked[op]:  # it needs less memory now
        _enter_all(order, at_binding, ready, op)


@compiled(inner=True)
def _replay(flat: FlatProblem, order: Order, at_binding: Booked, ready: Ready, ops: np.ndarray) -> None:
    """Add the transfers for `ops` to `at_binding`, in the order in which the ops were placed.

    With broadcasts a tensor may thus arrive sooner at other ops than was estimated; these are estimated again.
    """
    sent = np.empty(0, np.int64)
    if flat.broadcast[0] == 1:
        count = 0
        for op in ops:
            count += order.in_ptr[op + 1] - order.in_ptr[op]
        sent = np.empty(count, np.int64)
    count = 0
    for op in ops:
        device = at_binding.home[order.follow[op]]
        if flat.broadcast[0] == 1:
            for edge in range(order.in_ptr[op], order.in_ptr[op + 1]):
                away = at_binding.home[order.follow[order.edge_src[edge]]] != device
                if away and at_binding.delivered[order.edge_tensor[edge], device] < 0.0:
                    sent[count] = order.edge_tensor[edge]
                    count += 1
        arrival_of(flat, order, at_binding, op, device, True)
    last = -1
    for k in stable_argsort(sent[:count]):
        tensor = sent[k]
        if tensor == last:
            continue
        last = tensor
        for child in flat.tensor_child[flat.tensor_ptr[tensor] : flat.tensor_ptr[tensor + 1]]:
            if ready.seat[child] >= 0 and ready.bounds[child] > 0:
                _estimate(flat, order, at_binding, ready, child)
                _enter_all(order, at_binding, ready, child)


@compiled(inner=True)
def _may(flat: FlatProblem, order: Order, booked: Booked, ready: Ready, op: int, device: int, full: int) -> int:
    """Whether an op may start on a device: 0 = never, 1 = yes, 2 = only if no op has room on any device."""
    home = booked.home[order.follow[op]]
    if ready.seat[op] < 0 or (home >= 0 and home != device):
        return 0
    if home == device or full == 1 or booked.used[device] + ready.need[op] <= flat.memory[device]:
        return 1
    ready.need[op] = need_of(order, booked.home, op, ready.to_bind, ready.last_call)
    return 1 if booked.used[device] + ready.need[op] <= flat.memory[device] else 2


@compiled(inner=True)
def _top(
    flat: FlatProblem, order: Order, booked: Booked, ready: Ready, device: int, full: int, on_all: bool
) -> tuple[float, int]:
    """The earliest start of an op on a device in us, and the op's place; inf and -1 if there is none.

    With `on_all` an op starts no sooner than its inputs are on all devices.
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
        elif may > 0 and not (waits and us > actual):  # else it entered once more when its arrival became sooner
            later[to] = put(heaps, later[to], node, actual)
    return np.inf, -1


@compiled(inner=True)
def _first_choice(
    flat: FlatProblem,
    order: Order,
    booked: Booked,
    ready: Ready,
    device: int,
    full: int,
    child: int,
    until: float,
    best_start: float,
) -> tuple[float, int, bool]:
    """The op that a device would start first: start in us, place (-1 = none), whether it is the favourite child.

    Until the device has waited for its favourite `child` long enough (`until`), it starts other ops only once their
    inputs are on all devices. An op that would start later than `best_start` is left out if it takes long to find.
    """
    free, follow, home = ready.device_free[device], order.follow, booked.home
    if child < 0 or booked.placed[child]:
        start, position = _top(flat, order, booked, ready, device, full, False)
        return start, position, False
    own_start, own_at = np.inf, -1
    if _may(flat, order, booked, ready, child, device, full) == 1:
        own_start, own_at = max(ready.arrival[child, device], free), ready.place[child]
    room = booked.used[device] + order.demand[follow[child]] <= flat.memory[device]
    waits = free < until and (home[follow[child]] == device or (home[follow[child]] < 0 and room))
    start, position = _top(flat, order, booked, ready, device, full, waits)
    if waits and position >= 0 and start >= until:
        start, position = np.inf, -1
        if until <= min(best_start, own_start):
            start, position = _after_waiting(flat, order, booked, ready, device, full, child, until)
    if own_at >= 0 and own_start <= start:
        return own_start, own_at, True
    return start, position, False


@compiled(inner=True)
def _after_waiting(
    flat: FlatProblem, order: Order, booked: Booked, ready: Ready, device: int, full: int, child: int, until: float
) -> tuple[float, int]:
    """The start in us and the place of the op that a device starts if it waits in vain, found among all ready ops."""
    best, best_at = np.inf, -1
    for op in ready.ops[: ready.number[0]]:
        if op != child and _may(flat, order, booked, ready, op, device, full) == 1:
            start, at = max(ready.arrival[op, device], until), ready.place[op]
            if start < best or (start == best and at < best_at):
                best, best_at = start, at
    return best, best_at
