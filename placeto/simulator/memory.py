"""The simulator's numba kernels for memory, and the score of a placement: makespan and memory over the limit.

They read what `_kernel.run` recorded; see there for how to call them.

Legend: N ops, S sends, E edges, T tensors, D devices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from placeto.problem.flat import FlatProblems
from placeto.simulator.kernel import Record, new_record, run

MEMORY_PENALTY = 10.0
"""Makespans are multiplied by 1 + this x the sum over devices of max(0, peak - memory) / memory."""


def penalised(makespan_us: Any, overflow: Any) -> Any:
    """Makespans times 1 + `MEMORY_PENALTY` x the memory over the limit, numbers or arrays."""
    return makespan_us * (1.0 + MEMORY_PENALTY * overflow)


penalised_makespan = njit(cache=True, nogil=True)(penalised)
"""The same for kernels."""


@njit(cache=True, nogil=True)
def memory_bound(
    flat: FlatProblems, p: int, placement: np.ndarray, record: Record, num_sends: int, bound: np.ndarray
) -> None:
    """Fill `bound` (D,) int64: bytes of parameters and of all tensors ever on each device, at least the peak."""
    op0, tensor0 = flat.op_offset[p], flat.tensor_offset[p]
    n, d = flat.op_offset[p + 1] - op0, flat.device_offset[p + 1] - flat.device_offset[p]
    bound[:d] = 0
    for i in range(n):
        bound[placement[i]] += flat.resident[op0 + i]
    for tensor in range(flat.tensor_offset[p + 1] - tensor0):
        bound[placement[flat.tensor_src[tensor0 + tensor]]] += flat.live_bytes[tensor0 + tensor]
    for send in range(num_sends):
        tensor, dst = record.send_tensor[send], record.send_dst[send]
        if dst >= 0:
            bound[dst] += flat.tensor_bytes[tensor0 + tensor]
        else:
            for other in range(d):
                if other != placement[flat.tensor_src[tensor0 + tensor]]:
                    bound[other] += flat.tensor_bytes[tensor0 + tensor]


@njit(cache=True, nogil=True)
def lives(
    flat: FlatProblems, p: int, placement: np.ndarray, record: Record, num_sends: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """From when to when, in us, on which device and in how many bytes each tensor and each received copy lives.

    A tensor is on its producer's device from the producer's start to its last use there (end of the producer, of the
    last consumer on that device, of the last send), a received copy from its arrival to the end of the last
    consumer there. What is resident memory, such as a parameter, takes nothing more where it is made. Nor does a view
    beside the tensor that it is a part of, which lives as long as the last of its views.
    """
    edge0, edge1 = flat.edge_offset[p], flat.edge_offset[p + 1]
    tensor0, tensor1 = flat.tensor_offset[p], flat.tensor_offset[p + 1]
    d = flat.device_offset[p + 1] - flat.device_offset[p]
    tensor_ptr, tensor_child = flat.tensor_ptr[tensor0 + p : tensor1 + p + 1], flat.tensor_child[edge0:edge1]
    tensor_src, tensor_bytes = flat.tensor_src[tensor0:tensor1], flat.tensor_bytes[tensor0:tensor1]
    live_bytes, storage = flat.live_bytes[tensor0:tensor1], flat.storage[tensor0:tensor1]
    start, finish, num_tensors = record.start, record.finish, tensor1 - tensor0
    most = num_tensors + edge1 - edge0
    begin, end = np.empty(most), np.empty(most)  # lives, first of tensors, then of copies
    where, size = np.empty(most, np.int64), np.empty(most, np.int64)

    for tensor in range(num_tensors):
        src = tensor_src[tensor]
        begin[tensor], end[tensor] = start[src], finish[src]
        where[tensor], size[tensor] = placement[src], live_bytes[tensor]
        for k in range(tensor_ptr[tensor], tensor_ptr[tensor + 1]):
            if placement[tensor_child[k]] == placement[src]:
                end[tensor] = max(end[tensor], finish[tensor_child[k]])
    count = num_tensors
    copy_of = np.full(d, -1)
    for send in range(num_sends):
        tensor, dst = record.send_tensor[send], record.send_dst[send]
        src, arrival = placement[tensor_src[tensor]], record.send_finish[send]
        end[tensor] = max(end[tensor], arrival)
        first = count
        for k in range(tensor_ptr[tensor], tensor_ptr[tensor + 1]):
            s = placement[tensor_child[k]]
            if s != dst and (dst >= 0 or s == src):
                continue
            if copy_of[s] < first:
                copy_of[s] = count
                begin[count], end[count] = arrival, arrival
                where[count], size[count] = s, tensor_bytes[tensor]
                count += 1
            end[copy_of[s]] = max(end[copy_of[s]], finish[tensor_child[k]])

    for tensor in range(num_tensors):
        whole = storage[tensor]
        if whole != tensor and where[whole] == where[tensor]:
            end[whole] = max(end[whole], end[tensor])
            size[tensor] = 0
    return begin[:count], end[:count], where[:count], size[:count]


@njit(cache=True, nogil=True)
def peak_memory(
    flat: FlatProblems, p: int, placement: np.ndarray, record: Record, num_sends: int, peak: np.ndarray
) -> None:
    """Fill `peak` (D,) int64: most bytes on each device at any time, parameters included.

    See `lives`. At equal times frees come first; what lives for no time does not count.
    """
    begin, end, where, size = lives(flat, p, placement, record, num_sends)
    op0, op1 = flat.op_offset[p], flat.op_offset[p + 1]
    d, count = flat.device_offset[p + 1] - flat.device_offset[p], len(begin)
    used = np.zeros(d, np.int64)
    for i in range(op1 - op0):
        used[placement[i]] += flat.resident[op0 + i]
    peak[:d] = used
    by_begin, by_end = np.argsort(begin), np.argsort(end)
    freed = 0
    for live in by_begin:
        while freed < count and end[by_end[freed]] <= begin[live]:
            gone = by_end[freed]
            if begin[gone] < end[gone]:
                used[where[gone]] -= size[gone]
            freed += 1
        if begin[live] < end[live]:
            used[where[live]] += size[live]
            peak[where[live]] = max(peak[where[live]], used[where[live]])


@njit(cache=True, nogil=True)
def memory_overflow(flat: FlatProblems, p: int, placement: np.ndarray, record: Record, num_sends: int) -> float:
    """Sum over devices of max(0, peak - memory) / memory; the timeline is only worked out where the bound is over."""
    memory = flat.memory[flat.device_offset[p] : flat.device_offset[p + 1]]
    peak = np.zeros(len(memory), np.int64)
    memory_bound(flat, p, placement, record, num_sends, peak)
    fits = True
    for d in range(len(memory)):
        fits = fits and peak[d] <= memory[d]
    overflow = 0.0
    if not fits:
        peak_memory(flat, p, placement, record, num_sends, peak)
        for d in range(len(memory)):
            overflow += max(0, peak[d] - memory[d]) / memory[d]
    return overflow


@njit(cache=True, nogil=True)
def run_and_measure(
    flat: FlatProblems, p: int, placement: np.ndarray, record: Record, cutoff: float
) -> tuple[float, float, int]:
    """Simulate as `_kernel.run` does: makespan, overflow and number of sends; above `cutoff` two of them are inf."""
    makespan, num_sends = run(flat, p, placement, record, cutoff)
    if makespan == np.inf:
        return np.inf, np.inf, num_sends
    return makespan, memory_overflow(flat, p, placement, record, num_sends), num_sends


@njit(cache=True, nogil=True)
def score(flat: FlatProblems, p: int, placement: np.ndarray, cutoff: float) -> tuple[float, float]:
    """Makespan and memory overflow of one placement; both inf above `cutoff`."""
    makespan, overflow, _ = run_and_measure(flat, p, placement, new_record(flat, p), cutoff)
    return makespan, overflow
