"""The numba kernels behind `observation.observe`: one placement's schedule -> named feature columns.

Legend: N ops, D devices, G groups, E edges, T tensors, A tensor arcs (a tensor and a group that reads it), P pair arcs
(ordered pairs of groups that exchange tensors), M positions on all timelines. Times in microseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.environment.instance import FlatInstances
from placeto.problem.flat import FlatProblems
from placeto.simulator.kernel import Record
from placeto.simulator.timelines import first_after, timelines


class Situation(NamedTuple):
    """One placement of one instance and its schedule: slices of the flat arrays."""

    place: np.ndarray  # (N,) int64, device of each op
    op_time: np.ndarray  # (N, D)
    overhead: np.ndarray  # (D,)
    latency: np.ndarray  # (D, D)
    bandwidth: np.ndarray  # (D, D) bytes/us
    memory: np.ndarray  # (D,) bytes
    tensor_bytes: np.ndarray  # (T,)
    group: np.ndarray  # (N,)
    op_ptr: np.ndarray  # (G+1,) offsets of each group's ops
    ops: np.ndarray  # (N,) by group, in topological order within it
    resident: np.ndarray  # (G,) float64, bytes of parameters
    in_ptr: np.ndarray  # (N+1,)
    in_src: np.ndarray  # (E,)
    in_tensor: np.ndarray  # (E,)
    in_arc: np.ndarray  # (E,) tensor arc of each input, -1 within a group
    out_ptr: np.ndarray  # (N+1,)
    out_child: np.ndarray  # (E,)
    out_tensor: np.ndarray  # (E,)
    arc_src: np.ndarray  # (A,) producing op
    arc_dst: np.ndarray  # (A,) reading group
    arc_tensor: np.ndarray  # (A,)
    arc_pair: np.ndarray  # (A,) pair arc
    line_ptr: np.ndarray  # (D+1,)
    line: np.ndarray  # (M,) ops that take time, by device and start
    start: np.ndarray  # (N,)
    finish: np.ndarray  # (N,)
    slack: np.ndarray  # (N,)
    weight: np.ndarray  # (N,) criticality, 1 without slack
    makespan: float
    soft: float  # slack that counts as little
    mean_latency: float  # over all pairs of devices
    mean_rate: float  # us a byte


class Loads(NamedTuple):
    """Sums over what each device has: (D,) float64 each."""

    time: np.ndarray
    critical: np.ndarray
    last: np.ndarray
    egress: np.ndarray
    ingress: np.ndarray
    resident: np.ndarray


@njit(cache=True, error_model="numpy")
def situation(
    flat: FlatProblems,
    instances: FlatInstances,
    p: int,
    place: np.ndarray,
    record: Record,
    num_sends: int,
    makespan: float,
    slack: np.ndarray,
) -> Situation:
    """What the feature columns are worked out from."""
    op0, op1 = flat.op_offset[p], flat.op_offset[p + 1]
    edge0, edge1 = flat.edge_offset[p], flat.edge_offset[p + 1]
    device0, device1 = flat.device_offset[p], flat.device_offset[p + 1]
    pair0, pair1 = flat.pair_offset[p], flat.pair_offset[p + 1]
    group0, group1 = instances.group_offset[p], instances.group_offset[p + 1]
    arc0, arc1 = instances.arc_offset[p], instances.arc_offset[p + 1]
    n, devices = op1 - op0, device1 - device0
    latency = flat.latency_us[pair0:pair1].reshape(devices, devices)
    bandwidth = flat.bandwidth[pair0:pair1].reshape(devices, devices)
    mean_latency, mean_rate, links = 0.0, 0.0, 0
    for a in range(devices):
        for b in range(devices):
            if a != b:
                links += 1
                mean_latency += latency[a, b]
                mean_rate += 1.0 / bandwidth[a, b]
    if links:
        mean_latency /= links
        mean_rate /= links
    line_ptr, line = np.empty(devices + 1, np.int64), np.empty(n, np.int64)
    timelines(flat, p, place, record, num_sends, line_ptr, line)
    soft = 0.01 * makespan + 1e-9
    weight = np.empty(n)
    for i in range(n):
        weight[i] = np.exp(-slack[i] / soft)
    return Situation(
        place,
        flat.op_time[flat.time_offset[p] : flat.time_offset[p + 1]].reshape(n, devices),
        flat.overhead_us[device0:device1],
        latency,
        bandwidth,
        flat.memory[device0:device1],
        flat.tensor_bytes[flat.tensor_offset[p] : flat.tensor_offset[p + 1]],
        instances.group[op0:op1],
        instances.op_ptr[group0 + p : group1 + p + 1],
        instances.ops[op0:op1],
        instances.resident[group0:group1],
        instances.in_ptr[op0 + p : op1 + p + 1],
        instances.in_src[edge0:edge1],
        instances.in_tensor[edge0:edge1],
        instances.in_arc[edge0:edge1],
        flat.out_ptr[op0 + p : op1 + p + 1],
        flat.out_child[edge0:edge1],
        flat.out_tensor[edge0:edge1],
        instances.arc_src[arc0:arc1],
        instances.arc_dst[arc0:arc1],
        instances.arc_tensor[arc0:arc1],
        instances.arc_pair[arc0:arc1],
        line_ptr,
        line,
        record.start,
        record.finish,
        slack,
        weight,
        makespan,
        soft,
        mean_latency,
        mean_rate,
    )


@njit(cache=True, error_model="numpy")
def describe(s: Situation, single: float, bound: float, node: np.ndarray, pair: np.ndarray, edge: np.ndarray) -> None:
    """Fill the columns of one placement, zero before; visited, steps_left and is_current are left to the caller.

    Args:
        s: the placement and its schedule.
        single: makespan on the best single device.
        bound: lower bound of the makespan.
        node: (G, node columns) float32.
        pair: (G, D of the largest cluster, pair columns) float32.
        edge: (P, edge columns) float32.
    """
    devices = len(s.overhead)
    loads = Loads(
        np.zeros(devices), np.zeros(devices), np.zeros(devices), np.zeros(devices), np.zeros(devices), np.zeros(devices)
    )
    for g in range(len(s.resident)):
        _describe_group(s, g, 1.0 / single, loads, node, pair)
        node[g, NODE.makespan] = s.makespan * (1.0 / single)
        node[g, NODE.lower_bound] = bound * (1.0 / single)
    _describe_arcs(s, 1.0 / single, loads, node, pair, edge)
    _describe_pairs(s, single, loads, pair)


@njit(cache=True, error_model="numpy")
def _arrival(s: Situation, op: int, tensor: int, device: int) -> float:
    """When an op's output would be on a device."""
    arrival, source = s.finish[op], s.place[op]
    if source != device:
        arrival += s.latency[source, device] + s.tensor_bytes[tensor] / s.bandwidth[source, device]
    return arrival


@njit(cache=True, error_model="numpy")
def _describe_group(s: Situation, g: int, norm: float, loads: Loads, node: np.ndarray, pair: np.ndarray) -> None:
    """What is known of a group where it is, and its time on each device."""
    inverse, devices = 1.0 / s.makespan, len(s.overhead)
    first_start, last_finish, least = np.inf, 0.0, np.inf
    time, critical, wait = 0.0, 0.0, 0.0
    c = s.place[s.ops[s.op_ptr[g]]]
    for k in range(s.op_ptr[g], s.op_ptr[g + 1]):
        i = s.ops[k]
        t, w = s.op_time[i, c], s.weight[i]
        first_start = min(first_start, s.start[i])
        last_finish = max(last_finish, s.finish[i])
        time += t
        critical += w * t
        least = min(least, s.slack[i])
        ready = 0.0
        for e in range(s.in_ptr[i], s.in_ptr[i + 1]):
            ready = max(ready, _arrival(s, s.in_src[e], s.in_tensor[e], c))
        wait += w * max(0.0, s.start[i] - ready)
        for d in range(devices):
            pair[g, d, PAIR.time] += s.op_time[i, d] * norm
    loads.time[c] += time
    loads.critical[c] += critical
    loads.last[c] = max(loads.last[c], last_finish)
    loads.resident[c] += s.resident[g]
    node[g, NODE.time] = time * norm
    node[g, NODE.critical_time] = critical * inverse
    node[g, NODE.min_slack] = np.sqrt(max(0.0, least) * inverse)
    node[g, NODE.critical_wait] = min(4.0, wait * inverse)
    node[g, NODE.first_start] = first_start * inverse
    node[g, NODE.last_finish] = last_finish * inverse
    node[g, NODE.memory] = s.resident[g] / s.memory[c]
    node[g, NODE.log_ops] = np.log1p(s.op_ptr[g + 1] - s.op_ptr[g]) / 5.0


@njit(cache=True, error_model="numpy")
def _describe_arcs(
    s: Situation, norm: float, loads: Loads, node: np.ndarray, pair: np.ndarray, edge: np.ndarray
) -> None:
    """What groups send each other, and how urgent it is for the most urgent reader."""
    inverse = 1.0 / s.makespan
    arc_slack = np.full(len(s.arc_src), np.inf)
    for i in range(len(s.place)):
        latest = s.start[i] + s.slack[i]
        for e in range(s.in_ptr[i], s.in_ptr[i + 1]):
            a = s.in_arc[e]
            if a >= 0:
                arc_slack[a] = min(arc_slack[a], latest - _arrival(s, s.in_src[e], s.in_tensor[e], s.place[i]))
    for a in range(len(s.arc_src)):
        u, h, size = s.arc_src[a], s.arc_dst[a], s.tensor_bytes[s.arc_tensor[a]]
        g, c, d = s.group[u], s.place[u], s.place[s.ops[s.op_ptr[h]]]
        mean = s.mean_latency + size * s.mean_rate
        tight = np.exp(-max(0.0, arc_slack[a]) / s.soft)
        node[g, NODE.transfer_out] += mean * norm
        node[h, NODE.transfer_in] += mean * norm
        pair[h, c, PAIR.affinity_in] += mean * norm
        pair[g, d, PAIR.affinity_out] += mean * norm
        pair[h, c, PAIR.tight_in] += tight * mean * inverse
        pair[g, d, PAIR.tight_out] += tight * mean * inverse
        p = s.arc_pair[a]
        edge[p, EDGE.transfer] += mean * norm
        edge[p, EDGE.tight] = max(edge[p, EDGE.tight], tight)
        if c != d:
            actual = s.latency[c, d] + size / s.bandwidth[c, d]
            loads.egress[c] += actual
            loads.ingress[d] += actual
            node[g, NODE.tight_out] += tight * actual * inverse
            node[h, NODE.tight_in] += tight * actual * inverse
            edge[p, EDGE.cut] = 1.0
    for p in range(len(edge)):
        edge[p, EDGE.transfer] = np.sqrt(edge[p, EDGE.transfer])


@njit(cache=True, error_model="numpy")
def _describe_pairs(s: Situation, single: float, loads: Loads, pair: np.ndarray) -> None:
    """What is known of each device for each group, and what moving the group there would do."""
    inverse, guess = 1.0 / s.makespan, np.empty(len(s.place))
    for g in range(len(s.resident)):
        c = s.place[s.ops[s.op_ptr[g]]]
        here = pair[g, c, PAIR.affinity_in] + pair[g, c, PAIR.affinity_out]
        for d in range(len(s.overhead)):
            pair[g, d, PAIR.time_change] = pair[g, d, PAIR.time] - pair[g, c, PAIR.time]
            pair[g, d, PAIR.load] = loads.time[d] * inverse
            pair[g, d, PAIR.affinity_change] = pair[g, d, PAIR.affinity_in] + pair[g, d, PAIR.affinity_out] - here
            pair[g, d, PAIR.egress] = loads.egress[d] * inverse
            pair[g, d, PAIR.ingress] = loads.ingress[d] * inverse
            pair[g, d, PAIR.critical_load] = loads.critical[d] * inverse
            pair[g, d, PAIR.last_finish] = loads.last[d] * inverse
            if d == c:
                pair[g, d, PAIR.current] = 1.0
                pair[g, d, PAIR.load_after] = loads.time[d] * inverse
                pair[g, d, PAIR.memory_after] = loads.resident[d] / s.memory[d]
            else:
                pair[g, d, PAIR.load_after] = loads.time[d] * inverse + pair[g, d, PAIR.time] * single * inverse
                pair[g, d, PAIR.memory_after] = (loads.resident[d] + s.resident[g]) / s.memory[d]
                _describe_move(s, g, d, guess, pair[g, d])


@njit(cache=True, error_model="numpy")
def _describe_move(s: Situation, g: int, d: int, guess: np.ndarray, row: np.ndarray) -> None:
    """Lateness and gain, estimated, if group `g` moved to device `d`; `guess` (N,) is scratch space."""
    late_self, late_child, late_displaced = -np.inf, -np.inf, -np.inf
    gain, mean_late, total_wait, total_time, free = 0.0, 0.0, 0.0, 1e-9, 0.0
    first, stop = s.line_ptr[d], s.line_ptr[d + 1]
    cursor = first
    for k in range(s.op_ptr[g], s.op_ptr[g + 1]):
        i = s.ops[k]
        ready = free
        for e in range(s.in_ptr[i], s.in_ptr[i + 1]):
            u = s.in_src[e]
            ready = max(ready, guess[u] if s.in_arc[e] < 0 else _arrival(s, u, s.in_tensor[e], d))
        t, end = s.op_time[i, d], ready
        if t > 0.0:
            cursor = first_after(s.start, s.line, first, stop, cursor, ready)
            begin = ready
            if cursor > first:  # the op before may still run
                begin = max(begin, s.finish[s.line[cursor - 1]] + s.overhead[d])
            end = begin + t
            free = end + s.overhead[d]
            total_wait += begin - ready
            if cursor < stop:
                after = s.line[cursor]
                late_displaced = max(late_displaced, free - s.start[after] - s.slack[after])
        guess[i] = end
        late = end - s.finish[i] - s.slack[i]
        late_self = max(late_self, late)
        mean_late += t * max(0.0, late)
        total_time += t
        gain = max(gain, s.weight[i] * (s.finish[i] - end))
        for e in range(s.out_ptr[i], s.out_ptr[i + 1]):
            j = s.out_child[e]
            if s.group[j] != g:
                arrival = end
                if s.place[j] != d:
                    arrival += s.latency[d, s.place[j]] + s.tensor_bytes[s.out_tensor[e]] / s.bandwidth[d, s.place[j]]
                late_child = max(late_child, arrival - s.start[j] - s.slack[j])
    inverse = 1.0 / s.makespan
    row[PAIR.late_self] = min(1.0, max(-0.3, late_self * inverse))
    row[PAIR.late_child] = min(1.0, max(-0.3, late_child * inverse))
    row[PAIR.late_displaced] = min(1.0, max(-0.3, late_displaced * inverse))
    row[PAIR.gain] = min(1.0, gain * inverse)
    row[PAIR.mean_late] = min(1.0, mean_late / total_time * inverse)
    row[PAIR.wait] = min(1.0, total_wait * inverse)
