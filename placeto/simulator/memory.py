"""The simulator's numba kernels for memory, and the score of a placement: makespan and memory over the limit.

They read the `Record` of `placeto.simulator.kernel.run`; the module `kernel` says how to call them.

Legend: N ops, S sends, E edges, T tensors, D devices.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from placeto.plumbing.array_kernels import stable_argsort
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem
from placeto.simulator.kernel import Record, new_record, run
from placeto.simulator.lowering import lowered

MEMORY_PENALTY = 10.0
"""A makespan is multiplied by 1 + `MEMORY_PENALTY` x the sum over devices of max(0, peak - memory) / memory."""


def penalised(makespan_us: Any, overflow: Any) -> Any:
    """Return makespans x (1 + `MEMORY_PENALTY` x memory overflow), for numbers or arrays."""
    return makespan_us * (1.0 + MEMORY_PENALTY * overflow)


penalised_makespan = compiled()(penalised)
"""`penalised` for kernels."""


@compiled(inner=True)
def memory_bound(flat: FlatProblem, placement: np.ndarray, record: Record, num_sends: int, bound: np.ndarray) -> None:
    """Fill `bound` (D,) int64: resident bytes and all tensors that are ever on each device, so at least the peak."""
    d = len(flat.overhead_us)
    bound[:d] = 0
    for i in range(len(flat.op_rank)):
        bound[placement[i]] += flat.resident[i]
    for tensor in range(len(flat.tensor_src)):
        bound[placement[flat.tensor_src[tensor]]] += flat.live_bytes[tensor]
    for send in range(num_sends):
        tensor, dst = record.send_tensor[send], record.send_dst[send]
        if dst >= 0:
            bound[dst] += flat.tensor_bytes[tensor]
        else:
            for device in range(d):
                if device != placement[flat.tensor_src[tensor]]:
                    bound[device] += flat.tensor_bytes[tensor]


@compiled()
def lives(
    flat: FlatProblem, placement: np.ndarray, record: Record, num_sends: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the lives of all tensors and received copies: events that begin and end them, their devices, their bytes.

    A tensor is on its producer's device from the producer's start to its last use there: the end of the producer, of
    the last consumer on this device, or of the last send. A received copy is there from its arrival to the end of the
    last consumer on its device. If the graph says that a tensor is held until an op ends, this op counts as a consumer.
    Resident memory, such as a parameter, takes no further bytes where it is made. A view takes none either on the
    device of the tensor that it is a part of, and this tensor lives as long as the last of its views there.

    An event i is the start or the end of op i, and an event N + s is the delivery of send s: see `event_us`. Tensors
    come first, then copies in the order of their sends.
    """
    d, n, num_tensors = len(flat.overhead_us), len(flat.op_rank), len(flat.tensor_src)
    tensor_ptr, tensor_child, tensor_src = flat.tensor_ptr, flat.tensor_child, flat.tensor_src
    tensor_bytes, live_bytes, storage = flat.tensor_bytes, flat.live_bytes, flat.storage
    held_until, finish, room = flat.held_until, record.finish, num_tensors + len(tensor_child)
    born, ended = np.empty(room, np.int64), np.empty(room, np.int64)
    end = np.empty(room)  # time of the event in `ended`
    where, size = np.empty(room, np.int64), np.empty(room, np.int64)

    for tensor in range(num_tensors):
        src = tensor_src[tensor]
        born[tensor], ended[tensor], end[tensor] = src, src, finish[src]
        where[tensor], size[tensor] = placement[src], live_bytes[tensor]
        for k in range(tensor_ptr[tensor], tensor_ptr[tensor + 1]):
            child = tensor_child[k]
            if placement[child] == placement[src] and finish[child] > end[tensor]:
                ended[tensor], end[tensor] = child, finish[child]
        last = held_until[tensor]
        if last >= 0 and placement[last] == placement[src] and finish[last] > end[tensor]:
            ended[tensor], end[tensor] = last, finish[last]
    count = num_tensors
    copy_of = np.full(d, -1)
    for send in range(num_sends):
        tensor, dst = record.send_tensor[send], record.send_dst[send]
        src, arrival = placement[tensor_src[tensor]], record.send_finish[send]
        if arrival > end[tensor]:
            ended[tensor], end[tensor] = n + send, arrival
        first = count
        for k in range(tensor_ptr[tensor], tensor_ptr[tensor + 1]):
            child = tensor_child[k]
            s = placement[child]
            if s != dst and (dst >= 0 or s == src):
                continue
            if copy_of[s] < first:
                copy_of[s] = count
                born[count], ended[count], end[count] = n + send, n + send, arrival
                where[count], size[count] = s, tensor_bytes[tensor]
                count += 1
            if finish[child] > end[copy_of[s]]:
                ended[copy_of[s]], end[copy_of[s]] = child, finish[child]

    for tensor in range(num_tensors):
        whole = storage[tensor]
        if whole != tensor and where[whole] == where[tensor]:
            if end[tensor] > end[whole]:
                ended[whole], end[whole] = ended[tensor], end[tensor]
            size[tensor] = 0
    return born[:count], ended[:count], where[:count], size[:count]


@compiled(inner=True)
def event_us(event: int, of_op: np.ndarray, of_send: np.ndarray) -> float:
    """Return the time of an event: in `of_op` (N,), the starts or the ends of ops, or in `of_send`, the deliveries."""
    return of_op[event] if event < len(of_op) else of_send[event - len(of_op)]


@compiled()
def peak_memory(flat: FlatProblem, placement: np.ndarray, record: Record, num_sends: int, peak: np.ndarray) -> None:
    """Fill `peak` (D,) int64: most bytes on each device at any time, including resident bytes.

    It adds up the lives of `lives`. At equal times, memory is freed before more is taken, and lives of no duration do
    not count. The starts and the ends of a device's ops are recorded in order of time, so only deliveries are sorted.
    """
    born, ended, where, size = lives(flat, placement, record, num_sends)
    n, devices, resident = len(flat.op_rank), len(flat.overhead_us), flat.resident
    start, finish, delivery = record.start[:n], record.finish[:n], record.send_finish[:num_sends]
    order = record.order[: n + num_sends]
    allocated, freed = np.zeros(n, np.int64), np.zeros(n + num_sends, np.int64)  # bytes by the event of begin and end
    peak[:devices] = 0
    for i in range(n):
        peak[placement[i]] += resident[i]
    copies = len(born)  # index of the first received copy
    for life in range(len(born) - 1, -1, -1):
        if born[life] >= n:
            copies = life
        if event_us(born[life], start, delivery) >= event_us(ended[life], finish, delivery):
            size[life] = 0
        freed[ended[life]] += size[life]
        if born[life] < n:
            allocated[born[life]] += size[life]

    ops_ptr, ops = _by_device(order[order < n], placement, devices)
    source = placement[flat.tensor_src[record.send_tensor[:num_sends]]]
    sent, sends = _by_device(stable_argsort(delivery), source, devices)
    arrivals = delivery[born[copies:] - n]
    arrived, received = _by_device(stable_argsort(arrivals), where[copies:], devices)
    for d in range(devices):
        op, arrival, ending, sending, bytes_now, highest = ops_ptr[d], arrived[d], ops_ptr[d], sent[d], peak[d], peak[d]
        while op < ops_ptr[d + 1] or arrival < arrived[d + 1]:
            starts = start[ops[op]] if op < ops_ptr[d + 1] else np.inf
            arrives = arrivals[received[arrival]] if arrival < arrived[d + 1] else np.inf
            now = min(starts, arrives)
            while ending < ops_ptr[d + 1] and finish[ops[ending]] <= now:
                bytes_now -= freed[ops[ending]]
                ending += 1
            while sending < sent[d + 1] and delivery[sends[sending]] <= now:
                bytes_now -= freed[n + sends[sending]]
                sending += 1
            if starts <= arrives:
                bytes_now += allocated[ops[op]]
                op += 1
            else:
                bytes_now += size[copies + received[arrival]]
                arrival += 1
            highest = max(highest, bytes_now)
        peak[d] = highest


@compiled(inner=True)
def _by_device(items: np.ndarray, device: np.ndarray, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets (D+1,) and the items sorted by device, else in their order; item i is on ``device[i]``."""
    ptr, sorted_items = np.zeros(devices + 1, np.int64), np.empty_like(items)
    for item in items:
        ptr[device[item] + 1] += 1
    ptr = np.cumsum(ptr)
    cursor = ptr.copy()
    for item in items:
        sorted_items[cursor[device[item]]] = item
        cursor[device[item]] += 1
    return ptr, sorted_items


@compiled(inner=True)
def memory_overflow(flat: FlatProblem, placement: np.ndarray, record: Record, num_sends: int) -> float:
    """Sum over devices of max(0, peak - memory) / memory. Peaks are computed only if `memory_bound` is too large."""
    memory, peak = flat.memory, np.zeros(len(flat.memory), np.int64)
    memory_bound(flat, placement, record, num_sends, peak)
    fits = True
    for d in range(len(memory)):
        fits = fits and peak[d] <= memory[d]
    overflow = 0.0
    if not fits:
        peak_memory(flat, placement, record, num_sends, peak)
        for d in range(len(memory)):
            overflow += max(0, peak[d] - memory[d]) / memory[d]
    return overflow


@compiled(inner=True, inline="always")
def run_and_measure(
    flat: FlatProblem, placement: np.ndarray, record: Record, cutoff: float
) -> tuple[float, float, int]:
    """Lower and simulate: makespan in us, overflow, number of sends; if it exceeds `cutoff`, the first two are inf."""
    low, place = lowered(flat, placement)
    makespan, num_sends = run(low, place, record, cutoff)
    if makespan == np.inf:
        return np.inf, np.inf, num_sends
    return makespan, memory_overflow(low, place, record, num_sends), num_sends


@compiled(inner=True, inline="always")
def score(flat: FlatProblem, placement: np.ndarray, cutoff: float) -> tuple[float, float]:
    """Makespan in microseconds and memory overflow of one placement; both inf if the makespan is above `cutoff`."""
    makespan, overflow, _ = run_and_measure(flat, placement, new_record(flat), cutoff)
    return makespan, overflow
