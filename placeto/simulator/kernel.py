"""The simulator's kernel, which computes one schedule. `placeto.simulator.slack` and `memory` compute slack and memory.

Kernels read a `FlatProblem`, write into arrays of the caller, and may be called from any other numba function, also
inside prange (with one `Record` for each thread or iteration):

    record = new_record(flat)
    low, place = lowered(flat, placement)
    makespan, num_sends = run(low, place, record, np.inf)
    fill_slack(low, place, record, num_sends, makespan, op_slack, send_slack)

`placeto.simulator.lowering` has `lowered`; a problem without sums of gradients over micro-batches is its own lowering.

Events happen at slots: one for each device and each link. A slot has at most one pending event, so the next event is
the least (time, key) of the slots, and no heap is needed. The key orders events at equal times: deliveries by the rank
of their producer, then links, then devices, each by rank. A slot's delivery (of an op's output to consumers on the same
device, or of a send to its receivers) always comes before the next start of this slot, so the two share the slot. A
slot with an empty queue has no event (time inf); `free` is the time from which on it may start again. Free links share
one slot, with a heap of the sends that are on their way.

Legend: N ops, S sends, E edges, T tensors, D devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FREE, LIST, PAIR, PRIORITY, FlatProblem

_LINK = 1 << 32  # keys: deliveries from 0, links from _LINK, devices from _DEVICE; the last bits are the slot
_DEVICE = 2 << 32
BROADCAST = -1
_ONE = np.uint64(1)


class Record(NamedTuple):
    """Starts and ends of the ops and sends of one simulation. The arrays may be longer than needed."""

    start: np.ndarray  # (N,) float64, us; N includes relays
    finish: np.ndarray  # (N,) float64, us
    send_tensor: np.ndarray  # (E,) int64; sends are numbered in the order in which they join their link's queue
    send_dst: np.ndarray  # (E,) int64, device, or BROADCAST
    send_start: np.ndarray  # (E,) float64, us
    send_finish: np.ndarray  # (E,) float64, us, delivery
    order: np.ndarray  # (N+E,) int64, ops and sends in the order of their starts: op i as i, send s as N + s


def record_sizes(flat: FlatProblem) -> tuple[int, int]:
    """Return the numbers of ops and of edges, with relays, for which a record has room."""
    relays = int(flat.lowering[0]) if len(flat.lowering) else 0
    return len(flat.op_rank) + relays, len(flat.out_child) + relays


@compiled()
def new_record(flat: FlatProblem) -> Record:
    """Return an empty record, large enough for a problem as any placement lowers it."""
    relays = flat.lowering[0] if len(flat.lowering) > 0 else 0
    n, e = len(flat.op_rank) + relays, len(flat.out_child) + relays
    return Record(
        np.empty(n),
        np.empty(n),
        np.empty(e, np.int64),
        np.empty(e, np.int64),
        np.empty(e),
        np.empty(e),
        np.empty(n + e, np.int64),
    )


@compiled(inner=True)
def _merged(a: int, b: int, key: np.ndarray, tie: np.ndarray, left: np.ndarray, right: np.ndarray) -> int:
    """Merge two skew heaps (Sleator and Tarjan, 1986), return the root: least `key`, then least `tie`; -1 = empty."""
    if a < 0:
        return b
    if b < 0:
        return a
    if key[b] < key[a] or (key[b] == key[a] and tie[b] < tie[a]):
        a, b = b, a
    root = a
    while True:
        below = right[a]
        right[a] = left[a]
        if below < 0:
            left[a] = b
            return root
        if key[b] < key[below] or (key[b] == key[below] and tie[b] < tie[below]):
            below, b = b, below
        left[a] = below
        a = below


@compiled(inner=True)
def _add(place: int, number: int, words: np.ndarray, summary: np.ndarray, num_words: int, num_upper: int) -> None:
    """Add a place to set `number`: a bit in its `words`; `summary` has the bits of those words that aren't 0."""
    word = place >> 6
    words[number * num_words + word] |= _ONE << np.uint64(place & 63)
    summary[number * num_upper + (word >> 6)] |= _ONE << np.uint64(word & 63)


@compiled(inner=True)
def _take_first(number: int, words: np.ndarray, summary: np.ndarray, num_words: int, num_upper: int) -> int:
    """Remove the least place from set `number`, which must not be empty, and return it."""
    upper = 0
    while summary[number * num_upper + upper] == 0:
        upper += 1
    marks = summary[number * num_upper + upper]
    word = (upper << 6) + trailing_zeros(marks)  # type: ignore[call-arg]
    bits = words[number * num_words + word]
    words[number * num_words + word] = bits & (bits - _ONE)  # without its lowest bit
    if bits & (bits - _ONE) == 0:
        summary[number * num_upper + upper] = marks & (marks - _ONE)
    return (word << 6) + trailing_zeros(bits)


@compiled(inner=True)
def _next_event(slot_time: np.ndarray, slot_key: np.ndarray) -> tuple[float, int]:
    """Return the least time of the slots, and the least key of the slots that have this time."""
    now, key = slot_time[0], slot_key[0]
    for s in range(1, len(slot_time)):
        t = slot_time[s]
        if t <= now:
            if t < now:
                now, key = t, slot_key[s]
            else:
                key = min(key, slot_key[s])
    return now, key


@compiled()
def run(flat: FlatProblem, placement: np.ndarray, record: Record, cutoff: float) -> tuple[float, int]:
    """Simulate a problem under `placement` (N or more entries, each in 0..D-1, not checked), and fill `record`.

    Returns the makespan in microseconds and the number of sends. If the makespan exceeds `cutoff`, it returns inf as
    soon as a bound shows this, and `record` is incomplete.
    """
    # Fields become local variables, since each access to a field of a tuple counts a reference. So does each array that
    # is passed to a kernel: with a kernel by which ops join their queue, inlined or not, simulations took 15 to 40 %
    # longer. So all is in this function. Indices: `i` op, `s` slot, `slot` the slot of the event, `k` edge or op of a
    # list. In the loop, `link` is an index of `bandwidth`: sender x D + receiver.
    n, edges, d = len(flat.op_rank), len(flat.out_child), len(flat.overhead_us)
    broadcast, pair, free_links = flat.broadcast[0] == 1, flat.link[0] == PAIR, flat.link[0] == FREE
    by_priority, by_list = flat.dispatch[0] == PRIORITY, flat.dispatch[0] == LIST
    op_time, gap = flat.op_time, flat.link_gap_us[0]
    tail_us, rank, later_us = flat.tail_us, flat.op_rank, flat.later_us
    priority, ranked = flat.priority.copy(), flat.ranked.copy()
    if by_priority and (placement[:n] == placement[0]).all():  # one device: the order of the program needs least memory
        for i in range(n):
            priority[i] = ranked[i] = i
    out_ptr, out_child, out_tensor, named_child = flat.out_ptr, flat.out_child, flat.out_tensor, flat.named_child
    tensor_ptr, tensor_child = flat.tensor_ptr, flat.tensor_child
    tensor_src, tensor_bytes = flat.tensor_src, flat.tensor_bytes
    overhead, device_rank = flat.overhead_us, flat.device_rank
    launch_us, launched = flat.launch_us, np.zeros(d)  # when each device's next op is launched
    bandwidth, latency, path_ptr, path_link = flat.bandwidth, flat.latency_us, flat.path_ptr, flat.path_link
    shared_bandwidth, shared_free = flat.shared_bandwidth, np.zeros(len(flat.shared_bandwidth))
    start, finish, order = record.start, record.finish, record.order
    send_tensor, send_dst = record.send_tensor, record.send_dst
    send_start, send_finish = record.send_start, record.send_finish

    num_slots = d + (d * d if pair else 1 if free_links else d)
    bits = 0  # how many bits a slot's number takes, at the end of its key
    while num_slots > 1 << bits:
        bits += 1
    slot_time, slot_key = np.full(num_slots, np.inf), np.zeros(num_slots, np.int64)
    base_key = np.empty(num_slots, np.int64)  # the key of the slot's next start
    free = np.zeros(num_slots)
    head, last = np.full(num_slots, -1), np.full(num_slots, -1)  # queues of ops or sends, as linked lists
    running = np.zeros(num_slots, np.int64)  # op or send of the slot's pending delivery
    next_op, next_send = np.empty(n, np.int64), np.empty(edges, np.int64)
    send_cost = np.empty(edges)
    # by priority, and over free links, a queue of sends is a heap: `next_send` is then the right child of each send
    heaps = edges if by_priority or free_links else 0
    left_send = np.empty(heaps, np.int64)
    send_key, send_tie = np.empty(heaps), np.empty(heaps, np.int64)
    # by priority, a queue is its first op, in `head`, and a set of `queued` others: one op alone needs no set
    queued = np.zeros(d, np.int64)
    num_words = (n >> 6) + 1 if by_priority else 1
    num_upper = (num_words >> 6) + 1
    words, summary = np.zeros(d * num_words, np.uint64), np.zeros(d * num_upper, np.uint64)
    new_sends = np.zeros((d, 2), np.int64)  # sends that wait for the end of the running op, as (first, stop)
    missing = flat.num_inputs.copy()  # inputs that each op still waits for
    for s in range(d):
        base_key[s] = ((_DEVICE + device_rank[s]) << bits) + s
    for s in range(d, num_slots):
        link = s - d
        link_rank = device_rank[link // d] * d + device_rank[link % d] if pair else device_rank[link]
        base_key[s] = ((_LINK + link_rank) << bits) + s

    # at time 0, ops without inputs are ready; by list, a queue has all ops of its device, ready or not
    if by_list:
        for position in range(n - 1, -1, -1):
            i = ranked[position]
            next_op[i], head[placement[i]] = head[placement[i]], i
        for s in range(d):
            if head[s] >= 0 and missing[head[s]] == 0:
                slot_time[s], slot_key[s] = 0.0, base_key[s]
    else:
        for i in range(n):
            if missing[i] == 0:
                s = placement[i]
                if head[s] < 0:
                    head[s] = i
                elif by_priority:  # of this op and the head, the later one goes into the set
                    _add(max(priority[i], priority[head[s]]), s, words, summary, num_words, num_upper)
                    queued[s] += 1
                    if priority[i] < priority[head[s]]:
                        head[s] = i
                else:
                    next_op[last[s]] = i
                last[s], next_op[i] = i, -1
                slot_time[s], slot_key[s] = 0.0, base_key[s]

    num_sends, num_starts, makespan = 0, 0, 0.0
    while True:
        now, key = _next_event(slot_time, slot_key)
        if now == np.inf:
            break
        key, slot = key >> bits, key & ((1 << bits) - 1)

        if key >= _DEVICE:  # the device starts the head of its queue
            i = head[slot]
            if not by_priority:
                head[slot] = next_op[i]
            elif queued[slot] > 0:
                head[slot] = ranked[_take_first(slot, words, summary, num_words, num_upper)]
                queued[slot] -= 1
            else:
                head[slot] = -1
            duration = op_time[i * d + slot]
            end = now + duration
            if later_us[i] > 0.0:  # a chunk of ops ends no earlier than its launches
                launched[slot] += later_us[i]
                end = max(end, launched[slot])
            start[i], finish[i] = now, end
            if end + tail_us[i] > cutoff:  # what has to run after this op takes too long on any placement
                return np.inf, num_sends
            free[slot] = end + overhead[slot] if duration != 0.0 else end
            makespan = max(makespan, free[slot])  # as in the published simulator, with the last overhead
            if duration != 0.0:
                launched[slot] += launch_us[slot]
            free[slot] = max(free[slot], launched[slot])
            order[num_starts] = i
            num_starts += 1
            has_local = False
            first_send = num_sends
            for k in range(out_ptr[i], out_ptr[i + 1]):
                dst = placement[out_child[k]]
                if dst == slot:
                    has_local = True
                    continue
                tensor = out_tensor[k]
                link = slot * d + dst
                cost = latency[link] + tensor_bytes[tensor] / bandwidth[link]
                send = num_sends - 1  # find a send of this tensor (to this device): an op has few
                while send >= first_send and (send_tensor[send] != tensor or not (broadcast or send_dst[send] == dst)):
                    send -= 1
                if send >= first_send:  # it is as slow as its slowest receiver, and as urgent as its first reader
                    send_cost[send] = max(send_cost[send], cost)
                    if by_priority:
                        send_key[send] = min(send_key[send], priority[out_child[k]])
                    continue
                send = num_sends
                num_sends += 1
                send_cost[send] = cost
                send_tensor[send], send_dst[send] = tensor, BROADCAST if broadcast else dst
                if by_priority:
                    send_key[send] = priority[out_child[k]]
            if free_links:  # sends are on their way from the op's end on, and don't wait
                for send in range(first_send, num_sends):
                    send_start[send], send_finish[send] = end, end + send_cost[send]
                    makespan = max(makespan, send_finish[send])
                    order[num_starts] = n + send
                    num_starts += 1
                    # ties go by the producer's rank, as the keys of deliveries do, then by number
                    send_tie[send], left_send[send], next_send[send] = rank[i] * (edges) + send, -1, -1
                    head[d] = _merged(head[d], send, send_finish, send_tie, left_send, next_send)
                if head[d] >= 0:
                    slot_time[d] = send_finish[head[d]]
                    slot_key[d] = (rank[tensor_src[send_tensor[head[d]]]] << bits) + d
            elif by_priority:  # sends join their queue when the op ends, so that better ones can go first
                new_sends[slot, 0], new_sends[slot, 1] = first_send, num_sends
                has_local = has_local or num_sends > first_send
            else:  # sends join now: ops of a device end in the order of their starts, so none can come in between
                for send in range(first_send, num_sends):
                    s = d + (slot * d + send_dst[send] if pair else slot)
                    next_send[send] = -1
                    if head[s] < 0:
                        head[s] = send
                        if slot_time[s] == np.inf:  # else its delivery comes first, which then looks at the queue
                            slot_time[s], slot_key[s] = max(free[s], end), base_key[s]
                    else:
                        next_send[last[s]] = send
                    last[s] = send
            if has_local:
                running[slot] = i
                slot_time[slot], slot_key[slot] = end, (rank[i] << bits) + slot
            else:
                slot_time[slot] = free[slot] if head[slot] >= 0 and missing[head[slot]] == 0 else np.inf

        elif key >= _LINK:  # the link starts the head of its queue
            send = head[slot]
            tensor, begin = send_tensor[send], now
            if by_priority:
                head[slot] = _merged(left_send[send], next_send[send], send_key, send_tie, left_send, next_send)
            else:
                head[slot] = next_send[send]
            if len(path_link) > 0:  # it keeps its own link busy while it waits for shared links
                link = placement[tensor_src[tensor]] * d + send_dst[send]
                for k in range(path_ptr[link], path_ptr[link + 1]):
                    begin = max(begin, shared_free[path_link[k]])
                for k in range(path_ptr[link], path_ptr[link + 1]):
                    shared_free[path_link[k]] = begin + tensor_bytes[tensor] / shared_bandwidth[path_link[k]]
            end = begin + send_cost[send]
            send_start[send], send_finish[send] = begin, end
            free[slot] = end + gap
            makespan = max(makespan, free[slot])
            order[num_starts] = n + send
            num_starts += 1
            running[slot] = send
            slot_time[slot], slot_key[slot] = end, (rank[tensor_src[tensor]] << bits) + slot

        else:  # a delivery: consumers have one input less to wait for, in order of name
            local = slot < d
            if local:
                i = running[slot]
                first, stop = out_ptr[i], out_ptr[i + 1]
                src, dst = slot, slot
                if by_priority and not free_links:  # the op has ended: its sends join their queues
                    for send in range(new_sends[slot, 0], new_sends[slot, 1]):
                        s = d + (slot * d + send_dst[send] if pair else slot)
                        send_tie[send], left_send[send], next_send[send] = send, -1, -1
                        head[s] = _merged(head[s], send, send_key, send_tie, left_send, next_send)
                        if slot_time[s] == np.inf:
                            slot_time[s], slot_key[s] = max(free[s], now), base_key[s]
                if head[slot] >= 0 and missing[head[slot]] == 0:
                    slot_time[slot], slot_key[slot] = free[slot], base_key[slot]
                else:
                    slot_time[slot] = np.inf
            else:
                send = running[slot]
                if free_links:  # of all sends on their way, the first to arrive; `running` doesn't know it
                    send = head[d]
                    head[d] = _merged(left_send[send], next_send[send], send_finish, send_tie, left_send, next_send)
                tensor = send_tensor[send]
                first, stop = tensor_ptr[tensor], tensor_ptr[tensor + 1]
                src, dst = placement[tensor_src[tensor]], send_dst[send]
                if head[slot] < 0:
                    slot_time[slot] = np.inf
                elif free_links:
                    slot_time[d] = send_finish[head[d]]
                    slot_key[d] = (rank[tensor_src[send_tensor[head[d]]]] << bits) + d
                else:  # sends that joined at the start of their producer wait for its end
                    ready = finish[tensor_src[send_tensor[head[slot]]]]
                    slot_time[slot], slot_key[slot] = max(free[slot], ready), base_key[slot]
            for k in range(first, stop):
                child = named_child[k] if local else tensor_child[k]
                s = placement[child]
                if s != dst and (dst >= 0 or s == src):  # a broadcast is for all devices but the sender
                    continue
                missing[child] -= 1
                if missing[child] == 0:
                    if head[s] < 0:
                        head[s] = child
                        last[s], next_op[child] = child, -1
                    elif by_priority:
                        _add(max(priority[child], priority[head[s]]), s, words, summary, num_words, num_upper)
                        queued[s] += 1
                        if priority[child] < priority[head[s]]:
                            head[s] = child
                    elif not by_list:
                        next_op[last[s]] = child
                        last[s], next_op[child] = child, -1
                    if slot_time[s] == np.inf and missing[head[s]] == 0:
                        slot_time[s], slot_key[s] = max(free[s], now), base_key[s]

    if num_starts < n + num_sends:  # lists that wait for each other; a problem's own lists never do
        return np.inf, num_sends
    return (makespan if makespan <= cutoff else np.inf), num_sends
