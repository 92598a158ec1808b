"""The numba kernels behind `observation.observe`: they turn the schedule of one placement into feature columns.

Legend: N ops, D devices, G groups, E edges, T tensors, A tensor arcs (a tensor and a group that reads it), P pair arcs
(ordered pairs of groups that exchange tensors), M positions on all timelines. Times in microseconds.
Indices: g and h groups, c the device of a group, d any device, i op, u producer, j child, e edge, a tensor arc, p pair
arc, k position in `ops`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.environment.instance import FlatInstance
from placeto.environment.offers import offer
from placeto.plumbing.by_reference import reference
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem
from placeto.simulator.kernel import Record
from placeto.simulator.readings.timelines import first_after, timelines


class Situation(NamedTuple):
    """One placement of one instance and its schedule: slices of the flat arrays.

    Kernels copy its fields to local variables first, since each access to a field of a tuple counts a reference.
    """

    place: np.ndarray  # (N,) int64, device of each op
    op_time: np.ndarray  # (N, D) us
    overhead: np.ndarray  # (D,) us
    latency: np.ndarray  # (D, D) us
    bandwidth: np.ndarray  # (D, D) bytes/us
    memory: np.ndarray  # (D,) bytes
    tensor_bytes: np.ndarray  # (T,)
    group: np.ndarray  # (N,) group of each op
    op_ptr: np.ndarray  # (G+1,) offsets of each group's ops
    ops: np.ndarray  # (N,) by group, in topological order within it
    resident: np.ndarray  # (G,) float64, bytes of parameters, gradients and optimizer state
    in_ptr: np.ndarray  # (N+1,) offsets of each op's inputs
    in_src: np.ndarray  # (E,) op that each input is read from
    in_tensor: np.ndarray  # (E,) tensor of each input
    in_arc: np.ndarray  # (E,) tensor arc of each input, -1 within a group
    out_ptr: np.ndarray  # (N+1,) offsets of each op's children
    out_child: np.ndarray  # (E,) op that reads the tensor
    out_tensor: np.ndarray  # (E,) tensor that it reads
    arc_src: np.ndarray  # (A,) producing op
    arc_dst: np.ndarray  # (A,) reading group
    arc_tensor: np.ndarray  # (A,)
    arc_pair: np.ndarray  # (A,) pair arc
    line_ptr: np.ndarray  # (D+1,) offsets of each device's ops in `line`
    line: np.ndarray  # (M,) ops that take time, by device and start
    start: np.ndarray  # (N,) us
    finish: np.ndarray  # (N,) us
    slack: np.ndarray  # (N,) us
    weight: np.ndarray  # (N,) criticality of each op, see `columns`
    makespan: float  # us
    soft: float  # us, 1 % of the makespan: the unit of slack for criticality and tightness
    mean_latency: float  # us, over all pairs of devices
    mean_rate: float  # us a byte, over all pairs of devices


class Loads(NamedTuple):
    """What each device has: arrays (D,) float64."""

    time: np.ndarray  # us, sum of its op times
    critical: np.ndarray  # us, the same, weighted by criticality
    last: np.ndarray  # us, last end of an op
    egress: np.ndarray  # us, sum of transfers from it
    ingress: np.ndarray  # us, sum of transfers to it
    resident: np.ndarray  # bytes


@compiled(inner=True)
def situation(
    flat: FlatProblem,
    instance: FlatInstance,
    place: np.ndarray,
    record: Record,
    num_sends: int,
    makespan: float,
    slack: np.ndarray,
) -> Situation:
    """Return the situation from which the feature columns are computed.

    Args:
        flat: the problem.
        instance: the same problem with its groups.
        place: (N,) device of each op.
        record: schedule of this placement.
        num_sends: number of sends in the record.
        makespan: of the schedule, us.
        slack: (N,) us.
    """
    n, devices = len(flat.op_rank), len(flat.overhead_us)
    latency, bandwidth = flat.latency_us.reshape(devices, devices), flat.bandwidth.reshape(devices, devices)
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
    timelines(flat, place, record, num_sends, line_ptr, line)
    soft = 0.01 * makespan + 1e-9  # above 0 for a step that takes no time, too
    weight = np.empty(n)
    for i in range(n):
        weight[i] = np.exp(-slack[i] / soft)
    result = Situation(
        place,
        flat.op_time[: n * devices].reshape(n, devices),
        flat.overhead_us,
        latency,
        bandwidth,
        flat.memory,
        flat.tensor_bytes,
        instance.group,
        instance.op_ptr,
        instance.ops,
        instance.resident,
        instance.in_ptr,
        instance.in_src,
        instance.in_tensor,
        instance.in_arc,
        flat.out_ptr,
        flat.out_child,
        flat.out_tensor,
        instance.arc_src,
        instance.arc_dst,
        instance.arc_tensor,
        instance.arc_pair,
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
    return reference(result)  # a named tuple of so many arrays is passed on as one pointer


@compiled(inner=True)
def describe(
    s: Situation,
    single: float,
    bound: float,
    asked: np.ndarray,
    node: np.ndarray,
    pair: np.ndarray,
    edge: np.ndarray,
    offered: np.ndarray,
) -> None:
    """Fill the columns of one placement, which are 0 before.

    The columns that `describe_moves` fills, and visited, steps_left and is_current, are left to the caller.

    Args:
        s: the placement and its schedule.
        single: makespan on the best single device, us.
        bound: lower bound of the makespan, us.
        asked: (G,) bool, the groups that are offered moves.
        node: (G, node columns) float32.
        pair: (G, D of the largest cluster, pair columns) float32.
        edge: (P, edge columns) float32.
        offered: (G, D of the largest cluster) bool, see `offer`; all False before.
    """
    devices = len(s.overhead)
    loads = Loads(
        np.zeros(devices), np.zeros(devices), np.zeros(devices), np.zeros(devices), np.zeros(devices), np.zeros(devices)
    )
    node[:, NODE.makespan] = s.makespan * (1.0 / single)
    node[:, NODE.lower_bound] = bound * (1.0 / single)
    _describe_groups(s, 1.0 / single, loads, node, pair)
    _describe_arcs(s, 1.0 / single, loads, node, pair, edge)
    _describe_pairs(s, single, loads, pair)
    offer(s.place[s.ops[s.op_ptr[:-1]]], devices, asked, pair, offered)


@compiled(inner=True, inline="always")
def _arrival(
    finish: np.ndarray, place: np.ndarray, latency: np.ndarray, bandwidth: np.ndarray, op: int, size: int, device: int
) -> float:
    """Microseconds at which an op's output of `size` bytes would be on a device."""
    arrival, source = finish[op], place[op]
    if source != device:
        arrival += latency[source, device] + size / bandwidth[source, device]
    return arrival


@compiled(inner=True)
def _describe_groups(s: Situation, per_single: float, loads: Loads, node: np.ndarray, pair: np.ndarray) -> None:
    """Fill the columns of each group, those of `_describe_arcs` excepted, its time on each device, and `loads`."""
    overhead, place, ops, op_ptr, op_time = s.overhead, s.place, s.ops, s.op_ptr, s.op_time
    weight, start, finish, slack, in_ptr = s.weight, s.start, s.finish, s.slack, s.in_ptr
    latency, bandwidth, in_src, tensor_bytes, in_tensor = s.latency, s.bandwidth, s.in_src, s.tensor_bytes, s.in_tensor
    resident, memory = s.resident, s.memory
    per_makespan, devices = 1.0 / s.makespan, len(overhead)
    for g in range(len(resident)):
        first_start, last_finish, min_slack = np.inf, 0.0, np.inf
        time, critical, wait = 0.0, 0.0, 0.0
        c = place[ops[op_ptr[g]]]
        for k in range(op_ptr[g], op_ptr[g + 1]):
            i = ops[k]
            t, w = op_time[i, c], weight[i]
            first_start = min(first_start, start[i])
            last_finish = max(last_finish, finish[i])
            time += t
            critical += w * t
            min_slack = min(min_slack, slack[i])
            ready = 0.0
            for e in range(in_ptr[i], in_ptr[i + 1]):
                ready = max(
                    ready, _arrival(finish, place, latency, bandwidth, in_src[e], tensor_bytes[in_tensor[e]], c)
                )
            wait += w * max(0.0, start[i] - ready)
            for d in range(devices):
                pair[g, d, PAIR.time] += op_time[i, d] * per_single
        loads.time[c] += time
        loads.critical[c] += critical
        loads.last[c] = max(loads.last[c], last_finish)
        loads.resident[c] += resident[g]
        node[g, NODE.time] = time * per_single
        node[g, NODE.critical_time] = critical * per_makespan
        node[g, NODE.min_slack] = np.sqrt(max(0.0, min_slack) * per_makespan)
        node[g, NODE.critical_wait] = min(4.0, wait * per_makespan)
        node[g, NODE.first_start] = first_start * per_makespan
        node[g, NODE.last_finish] = last_finish * per_makespan
        node[g, NODE.memory] = resident[g] / memory[c]
        node[g, NODE.log_ops] = np.log1p(op_ptr[g + 1] - op_ptr[g]) / 5.0


@compiled(inner=True)
def _describe_arcs(
    s: Situation, per_single: float, loads: Loads, node: np.ndarray, pair: np.ndarray, edge: np.ndarray
) -> None:
    """Fill the columns of what groups send each other, with the tightness at the most urgent reader, and `loads`."""
    arc_src, place, start, slack, in_ptr = s.arc_src, s.place, s.start, s.slack, s.in_ptr
    in_arc, finish, latency, bandwidth, in_src = s.in_arc, s.finish, s.latency, s.bandwidth, s.in_src
    tensor_bytes, in_tensor, arc_dst, arc_tensor, group = s.tensor_bytes, s.in_tensor, s.arc_dst, s.arc_tensor, s.group
    ops, op_ptr, arc_pair = s.ops, s.op_ptr, s.arc_pair
    per_makespan = 1.0 / s.makespan
    arc_slack = np.full(len(arc_src), np.inf)  # by how much later each tensor may arrive at its most urgent reader
    for i in range(len(place)):
        latest = start[i] + slack[i]
        for e in range(in_ptr[i], in_ptr[i + 1]):
            a = in_arc[e]
            if a >= 0:
                arc_slack[a] = min(
                    arc_slack[a],
                    latest
                    - _arrival(finish, place, latency, bandwidth, in_src[e], tensor_bytes[in_tensor[e]], place[i]),
                )
    for a in range(len(arc_src)):
        u, h, size = arc_src[a], arc_dst[a], tensor_bytes[arc_tensor[a]]
        g, c, d = group[u], place[u], place[ops[op_ptr[h]]]
        mean = s.mean_latency + size * s.mean_rate  # over a mean link: the same wherever the two groups are
        tight = np.exp(-max(0.0, arc_slack[a]) / s.soft)
        node[g, NODE.transfer_out] += mean * per_single
        node[h, NODE.transfer_in] += mean * per_single
        pair[h, c, PAIR.affinity_in] += mean * per_single
        pair[g, d, PAIR.affinity_out] += mean * per_single
        pair[h, c, PAIR.tight_in] += tight * mean * per_makespan
        pair[g, d, PAIR.tight_out] += tight * mean * per_makespan
        p = arc_pair[a]
        edge[p, EDGE.transfer] += mean * per_single
        edge[p, EDGE.tight] = max(edge[p, EDGE.tight], tight)
        if c != d:
            actual = latency[c, d] + size / bandwidth[c, d]
            loads.egress[c] += actual
            loads.ingress[d] += actual
            node[g, NODE.tight_out] += tight * actual * per_makespan
            node[h, NODE.tight_in] += tight * actual * per_makespan
            edge[p, EDGE.cut] = 1.0
    for p in range(len(edge)):
        edge[p, EDGE.transfer] = np.sqrt(edge[p, EDGE.transfer])


@compiled(inner=True)
def _describe_pairs(s: Situation, single: float, loads: Loads, pair: np.ndarray) -> None:
    """Fill the columns of each pair that are computed from `loads`, `time` and the affinities."""
    place, resident, ops, op_ptr, overhead = s.place, s.resident, s.ops, s.op_ptr, s.overhead
    memory = s.memory
    per_makespan = 1.0 / s.makespan
    for g in range(len(resident)):
        c = place[ops[op_ptr[g]]]
        affinity = pair[g, c, PAIR.affinity_in] + pair[g, c, PAIR.affinity_out]
        for d in range(len(overhead)):
            pair[g, d, PAIR.time_change] = pair[g, d, PAIR.time] - pair[g, c, PAIR.time]
            pair[g, d, PAIR.load] = loads.time[d] * per_makespan
            pair[g, d, PAIR.affinity_change] = pair[g, d, PAIR.affinity_in] + pair[g, d, PAIR.affinity_out] - affinity
            pair[g, d, PAIR.egress] = loads.egress[d] * per_makespan
            pair[g, d, PAIR.ingress] = loads.ingress[d] * per_makespan
            pair[g, d, PAIR.critical_load] = loads.critical[d] * per_makespan
            pair[g, d, PAIR.last_finish] = loads.last[d] * per_makespan
            if d == c:
                pair[g, d, PAIR.current] = 1.0
                pair[g, d, PAIR.load_after] = loads.time[d] * per_makespan
                pair[g, d, PAIR.memory_after] = loads.resident[d] / memory[d]
            else:
                pair[g, d, PAIR.load_after] = (
                    loads.time[d] * per_makespan + pair[g, d, PAIR.time] * single * per_makespan
                )
                pair[g, d, PAIR.memory_after] = (loads.resident[d] + resident[g]) / memory[d]


@compiled(inner=True)
def describe_moves(s: Situation, offered: np.ndarray, pair: np.ndarray, first: int, step: int) -> None:
    """Fill the columns of lateness, gain and wait for groups on each device that they are offered, but not their own.

    Args:
        s: the placement and its schedule.
        offered: (G, D or more) bool.
        pair: as in `describe`.
        first: the first group; every `step`-th group after it follows.
        step: number of calls that share the work.
    """
    line_ptr, op_ptr, ops, in_ptr, in_src = s.line_ptr, s.op_ptr, s.ops, s.in_ptr, s.in_src
    in_arc, finish, place, latency, bandwidth = s.in_arc, s.finish, s.place, s.latency, s.bandwidth
    tensor_bytes, in_tensor, op_time, start, line = s.tensor_bytes, s.in_tensor, s.op_time, s.start, s.line
    overhead, slack, weight, out_ptr, out_child = s.overhead, s.slack, s.weight, s.out_ptr, s.out_child
    group, out_tensor = s.group, s.out_tensor
    per_makespan, moved_end = 1.0 / s.makespan, np.empty(len(s.place))  # us; estimated ends of the group's ops
    for g in range(first, len(s.resident), step):
        for d in range(len(s.overhead)):
            if d == s.place[s.ops[s.op_ptr[g]]] or not offered[g, d]:
                continue
            # an estimate without a simulation: the group's ops are put into the device's timeline, one after another,
            # and all other ops stay where and when they are
            row = pair[g, d]
            late_self, late_child, late_displaced = -np.inf, -np.inf, -np.inf
            gain, mean_late, total_wait, device_free = 0.0, 0.0, 0.0, 0.0
            total_time = 1e-9  # above 0 for a group that takes no time, too
            line_first, stop = line_ptr[d], line_ptr[d + 1]
            cursor = line_first
            for k in range(op_ptr[g], op_ptr[g + 1]):
                i = ops[k]
                ready = device_free
                for e in range(in_ptr[i], in_ptr[i + 1]):
                    u = in_src[e]
                    ready = max(
                        ready,
                        moved_end[u]  # it moves as well
                        if in_arc[e] < 0
                        else _arrival(finish, place, latency, bandwidth, u, tensor_bytes[in_tensor[e]], d),
                    )
                t, end = op_time[i, d], ready
                if t > 0.0:  # others need no time on the device
                    cursor = first_after(start, line, line_first, stop, cursor, ready)
                    begin = ready
                    if cursor > line_first:  # the op before may still run
                        begin = max(begin, finish[line[cursor - 1]] + overhead[d])
                    end = begin + t
                    device_free = end + overhead[d]
                    total_wait += begin - ready
                    if cursor < stop:
                        after = line[cursor]
                        late_displaced = max(late_displaced, device_free - start[after] - slack[after])
                moved_end[i] = end
                late = end - finish[i] - slack[i]
                late_self = max(late_self, late)
                mean_late += t * max(0.0, late)
                total_time += t
                gain = max(gain, weight[i] * (finish[i] - end))
                for e in range(out_ptr[i], out_ptr[i + 1]):
                    j = out_child[e]
                    if group[j] != g:
                        arrival = end
                        if place[j] != d:
                            arrival += latency[d, place[j]] + tensor_bytes[out_tensor[e]] / bandwidth[d, place[j]]
                        late_child = max(late_child, arrival - start[j] - slack[j])
            row[PAIR.late_self] = min(1.0, max(-0.3, late_self * per_makespan))
            row[PAIR.late_child] = min(1.0, max(-0.3, late_child * per_makespan))
            row[PAIR.late_displaced] = min(1.0, max(-0.3, late_displaced * per_makespan))
            row[PAIR.gain] = min(1.0, gain * per_makespan)
            row[PAIR.mean_late] = min(1.0, mean_late / total_time * per_makespan)
            row[PAIR.wait] = min(1.0, total_wait * per_makespan)
