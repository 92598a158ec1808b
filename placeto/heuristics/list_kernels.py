"""What the compiled loops of `placeto.heuristics.list_scheduling` share, and that of HEFT; ETF's is in `etf_kernel`.

An op *floats* if it takes no time and needs no other ops than those of its own group that float: parameters, inputs,
views of them. It is taken to be on every device at time 0 until its group is *bound* to a device. This happens when an
op that needs it, or another op of its group, is placed on the device.

Legend: N ops, E edges, T tensors, D devices, K groups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.plumbing.array_kernels import NONE, number_up_to, stable_argsort
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FREE, PAIR, FlatProblem


class Order(NamedTuple):
    """The ops to place, with their ranks and groups."""

    rank: np.ndarray  # (N,) us, upward rank
    follow: np.ndarray  # (N,) int64, group of each op; a group goes where the first of its ops does
    demand: np.ndarray  # (K,) bytes that each group occupies during the whole step
    floats: np.ndarray  # (N,) bool, whether the op floats
    in_ptr: np.ndarray  # (N+1,) offsets of each op's edges in the next two arrays
    edge_src: np.ndarray  # (E,) int64
    edge_tensor: np.ndarray  # (E,) int64


class Booked(NamedTuple):
    """The schedule of the ops that are placed so far."""

    finish: np.ndarray  # (N,) us, end of each op
    placed: np.ndarray  # (N,) bool, whether the op is placed or floats
    home: np.ndarray  # (K,) int64, device of each group, -1 = not bound
    used: np.ndarray  # (D,) bytes of the groups that are bound to each device
    delivered: np.ndarray  # (T, D) us, arrival of each tensor, -1 = not sent
    link_free: np.ndarray  # (D*D,) us, when each link is free; empty if tensors don't wait for their link


@compiled(inner=True)
def nothing_booked(flat: FlatProblem, order: Order, queueing: bool) -> Booked:
    """Return the empty schedule, in which only the ops that float count as placed."""
    n, d = len(flat.op_rank), len(flat.overhead_us)
    return Booked(
        finish=np.zeros(n),
        placed=order.floats.copy(),
        home=np.full(len(order.demand), -1),
        used=np.zeros(d),
        delivered=np.full((len(flat.tensor_src), d), -1.0),
        link_free=np.zeros(d * d if queueing and flat.link[0] != FREE else 0),
    )


@compiled()
def floating(
    follow: np.ndarray, free: np.ndarray, order: np.ndarray, in_ptr: np.ndarray, edge_src: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which ops float (N,) bool, and the groups (N,) once each such op that is alone joined that of its inputs.

    `follow` (N,): group of each op; `free` (N,) bool: ops that take no time on any device; `order` (N,): topological.
    """
    floats, joined = np.zeros(len(order), np.bool_), follow.copy()
    size = np.bincount(follow)
    for op in order:
        if not free[op]:
            continue
        group, same = -1, True
        for edge in range(in_ptr[op], in_ptr[op + 1]):
            parent = edge_src[edge]
            same = same and floats[parent] and (group < 0 or joined[parent] == group)
            group = joined[parent]
        if same and (group < 0 or group == joined[op]):
            floats[op] = True
        elif same and size[joined[op]] == 1:
            floats[op], joined[op] = True, group
    return floats, joined


@compiled(inner=True)
def need_of(order: Order, home: np.ndarray, op: int, to_bind: np.ndarray, last_call: np.ndarray) -> float:
    """Bytes of the groups that placing an op would bind; the groups of its inputs that float are written to `to_bind`.

    -1 follows them in `to_bind` (K+1,). `last_call` (K+1,) int64 is all 0 at first; its last entry counts the calls.
    """
    group = order.follow[op]
    need = order.demand[group] if home[group] < 0 else 0.0
    last_call[-1] += 1  # calls have numbers, so that no call has to reset what the one before it has noted
    count, call = 0, last_call[-1]
    for edge in range(order.in_ptr[op], order.in_ptr[op + 1]):
        parent = order.edge_src[edge]
        input_group = order.follow[parent]
        if order.floats[parent] and home[input_group] < 0 and input_group != group and last_call[input_group] != call:
            last_call[input_group] = call
            to_bind[count] = input_group
            need += order.demand[input_group]
            count += 1
    to_bind[count] = -1
    return need


@compiled(inner=True)
def bind(order: Order, booked: Booked, op: int, device: int, to_bind: np.ndarray, last_call: np.ndarray) -> int:
    """Bind an op's group, and the groups of its inputs that float, to a device; returns how many weren't bound yet."""
    booked.used[device] += need_of(order, booked.home, op, to_bind, last_call)
    bound = 0
    if booked.home[order.follow[op]] < 0:
        booked.home[order.follow[op]] = device
        bound += 1
    k = 0
    while to_bind[k] >= 0:
        booked.home[to_bind[k]] = device
        bound += 1
        k += 1
    return bound


@compiled(inner=True)
def settled(flat: FlatProblem, order: Order, booked: Booked) -> np.ndarray:
    """(N,) device of each op; each group that isn't bound goes to the device with the most free memory."""
    home, used = booked.home, booked.used
    for group in range(len(home)):
        if home[group] < 0:
            home[group] = (flat.memory - used).argmax()
            used[home[group]] += order.demand[group]
    return home[order.follow]


@compiled(inner=True)
def arrival_of(flat: FlatProblem, order: Order, booked: Booked, op: int, device: int, commit: bool) -> float:
    """Microseconds at which all inputs of an op are on a device; with `commit` their transfers enter the schedule."""
    num_devices = len(flat.overhead_us)
    pair = flat.link[0] == PAIR
    finish, delivered, link_free = booked.finish, booked.delivered, booked.link_free
    ready = 0.0
    for edge in range(order.in_ptr[op], order.in_ptr[op + 1]):
        parent, tensor = order.edge_src[edge], order.edge_tensor[edge]
        source = booked.home[order.follow[parent]]
        if source == device or source < 0:  # the parent floats: placing the op binds it
            ready = max(ready, finish[parent])
            continue
        arrival = delivered[tensor, device]
        if arrival < 0.0:
            link = source * num_devices + device
            queue = link if pair else source * num_devices + source  # each sender has one queue, on the diagonal
            begin = finish[parent]
            if len(link_free) > 0:
                begin = max(begin, link_free[queue])
            arrival = begin + flat.latency_us[link] + flat.tensor_bytes[tensor] / flat.bandwidth[link]
            if commit:
                if len(link_free) > 0:
                    link_free[queue] = arrival + flat.link_gap_us[0]
                if flat.broadcast[0] == 1:
                    for receiver in range(num_devices):  # one send reaches them all
                        if delivered[tensor, receiver] < 0.0:
                            delivered[tensor, receiver] = arrival
                else:
                    delivered[tensor, device] = arrival
        ready = max(ready, arrival)
    return ready


@compiled()
def earliest_finish(flat: FlatProblem, order: Order, queueing: bool) -> tuple[np.ndarray, np.ndarray]:
    """HEFT with insertion into idle gaps: the device (N,) of each op, and its start (N,) in us by HEFT's estimate."""
    n, d = len(flat.op_rank), len(flat.overhead_us)
    booked = nothing_booked(flat, order, queueing)
    home, used = booked.home, booked.used
    to_bind, last_call = np.empty(len(order.demand) + 1, np.int64), np.zeros(len(order.demand) + 1, np.int64)
    # busy intervals of each device, sorted by start, `length` of them; then the same, adjacent ones joined to `blocks`
    begin, end, length = np.empty((d, n)), np.empty((d, n)), np.zeros(d, np.int64)
    first, last, blocks = np.empty((d, n)), np.empty((d, n)), np.zeros(d, np.int64)
    starts = np.zeros(n)
    for op in _ranked(flat, order.rank, flat.num_inputs.copy()):
        if order.floats[op]:
            continue
        group = order.follow[op]
        need = need_of(order, home, op, to_bind, last_call)
        best, best_start, best_finish = NONE, 0.0, np.inf
        for full in range(2):  # devices that have room, and if none has, all
            for device in range(d):
                if home[group] >= 0 and device != home[group]:
                    continue
                if home[group] < 0 and full == 0 and used[device] + need > flat.memory[device]:
                    continue
                ready = arrival_of(flat, order, booked, op, device, False)
                busy = flat.op_time[op * d + device]
                if busy > 0.0:
                    busy += flat.overhead_us[device]
                    start = _first_gap(first[device], last[device], blocks[device], ready, busy)
                else:  # an op without time fits between two adjacent intervals, too, which a block doesn't show
                    start = _first_gap(begin[device], end[device], length[device], ready, busy)
                if start + busy < best_finish:
                    best, best_start, best_finish = device, start, start + busy
            if best >= 0:
                break
        bind(order, booked, op, best, to_bind, last_call)
        arrival_of(flat, order, booked, op, best, True)
        busy = flat.op_time[op * d + best]
        booked.finish[op], starts[op] = best_start + busy, best_start
        if busy > 0.0:
            busy += flat.overhead_us[best]
            _book(begin[best], end[best], length[best], best_start, best_start + busy)
            length[best] += 1
            blocks[best] = _extend(first[best], last[best], blocks[best], best_start, best_start + busy)
    return settled(flat, order, booked), starts


@compiled(inner=True)
def _ranked(flat: FlatProblem, rank: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """(N,) ops by falling rank; with equal ranks producers come before their consumers. `missing` is overwritten."""
    n = len(rank)
    queue, head, tail = np.empty(n, np.int64), 0, 0
    for op in range(n):
        if missing[op] == 0:
            queue[tail] = op
            tail += 1
    while head < tail:
        op = queue[head]
        head += 1
        for edge in range(flat.out_ptr[op], flat.out_ptr[op + 1]):
            child = flat.out_child[edge]
            missing[child] -= 1
            if missing[child] == 0:
                queue[tail] = child
                tail += 1
    ranks = rank[queue]
    return queue[stable_argsort(-ranks)]  # stable: equal ranks stay in topological order


@compiled(inner=True)
def _first_gap(begin: np.ndarray, end: np.ndarray, length: int, ready: float, busy: float) -> float:
    """Earliest start, at or after `ready`, in a gap that is at least `busy` long."""
    start = ready
    for k in range(number_up_to(end, length, ready), length):
        if start + busy <= begin[k]:
            return start
        start = max(start, end[k])
    return start


@compiled(inner=True)
def _book(begin: np.ndarray, end: np.ndarray, length: int, start: float, stop: float) -> None:
    """Insert a busy interval into `length` sorted ones."""
    k = length
    while k > 0 and begin[k - 1] > start:
        begin[k], end[k] = begin[k - 1], end[k - 1]
        k -= 1
    begin[k], end[k] = start, stop


@compiled(inner=True)
def _extend(first: np.ndarray, last: np.ndarray, count: int, start: float, stop: float) -> int:
    """Add a busy interval to the blocks of a device, which are joined if adjacent; returns their new number."""
    after = number_up_to(first, count, start)
    follows, leads = after > 0 and last[after - 1] == start, after < count and first[after] == stop
    if follows and leads:
        last[after - 1] = last[after]
        for k in range(after, count - 1):
            first[k], last[k] = first[k + 1], last[k + 1]
        return count - 1
    if follows:
        last[after - 1] = stop
    elif leads:
        first[after] = start
    else:
        _book(first, last, count, start, stop)
        return count + 1
    return count
