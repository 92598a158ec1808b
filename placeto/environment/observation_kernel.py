"""The numba kernel behind `features.observe`: one placement's schedule -> named feature columns.

Legend: N ops, D devices, G groups, E edges, A tensor arcs (a tensor and a group that reads it), P pair arcs
(ordered pairs of groups that exchange tensors). All arrays are one graph's slices; times in microseconds.
"""

from __future__ import annotations

import numpy as np
from numba import njit

NODE_FEATURES = (
    "time",  # of the group on its device / best single-device makespan
    "critical_time",  # the same, each op weighted by its criticality / makespan
    "min_slack",  # square root of the smallest slack / makespan
    "critical_wait",  # critical ops' waiting for the device or a loaded link / makespan
    "first_start",  # / makespan
    "last_finish",  # / makespan
    "visited",  # 1 once moved in this sweep
    "tight_in",  # transfers that arrive just in time / makespan
    "tight_out",
    "memory",  # resident parameters / memory of its device
    "transfer_in",  # all tensors read from other groups, over the mean link / single-device makespan
    "transfer_out",
    "log_ops",
    "makespan",  # of the whole placement / single-device makespan
    "lower_bound",  # of the graph / single-device makespan
    "steps_left",  # fraction of the sweep still to go
    "is_current",  # 1 at the node that the traversal has reached (fixed order only)
)
PAIR_FEATURES = (
    "current",  # the group is on this device now
    "time",  # of the group there / single-device makespan
    "time_change",  # there less here
    "load",  # busy time of the device / makespan
    "load_after",
    "affinity_in",  # transfer time of tensors read from groups there / single-device makespan
    "affinity_out",  # transfer time of tensors read by groups there
    "affinity_change",  # both, there less here
    "tight_in",  # of these, the ones that arrive just in time / makespan
    "tight_out",
    "late_self",  # largest lateness of an op of the group against its slack, if moved / makespan
    "late_child",  # largest lateness of data for a child outside of the group
    "late_displaced",  # largest lateness caused to the next op on that device
    "gain",  # how much earlier critical ops would finish
    "mean_late",  # time-weighted lateness
    "wait",  # time that the group's ops would wait for ops already there
    "memory_after",  # resident parameters there after the move / its memory
    "egress",  # transfer time sent from the device / makespan
    "ingress",
    "critical_load",  # busy time weighted by criticality / makespan
    "last_finish",  # of the device / makespan
)
EDGE_FEATURES = ("transfer", "cut", "tight")

NODE_INDEX = {name: i for i, name in enumerate(NODE_FEATURES)}
PAIR_INDEX = {name: i for i, name in enumerate(PAIR_FEATURES)}


@njit(cache=True, error_model="numpy")
def observe_one(
    place: np.ndarray,
    op_time: np.ndarray,
    group: np.ndarray,
    group_ptr: np.ndarray,
    group_ops: np.ndarray,
    in_ptr: np.ndarray,
    in_src: np.ndarray,
    in_bytes: np.ndarray,
    in_arc: np.ndarray,
    out_ptr: np.ndarray,
    out_dst: np.ndarray,
    out_bytes: np.ndarray,
    out_same: np.ndarray,
    arc_src: np.ndarray,
    arc_dst: np.ndarray,
    arc_bytes: np.ndarray,
    arc_pair: np.ndarray,
    group_params: np.ndarray,
    overhead: np.ndarray,
    latency: np.ndarray,
    bandwidth: np.ndarray,
    memory: np.ndarray,
    scalars: np.ndarray,  # single_us, lower_bound_us
    start: np.ndarray,
    finish: np.ndarray,
    slack: np.ndarray,
    makespan: float,
    order: np.ndarray,  # ops by start event
    node: np.ndarray,  # out: (G, Fn) float32
    pair: np.ndarray,  # out: (G, Dmax, Fp) float32
    edge: np.ndarray,  # out: (P, Fe) float32
) -> None:
    """Fill the feature columns of one placement; visited, steps_left and is_current are left to the caller."""
    num_ops = op_time.shape[0]
    devices = op_time.shape[1]
    groups = group_ptr.shape[0] - 1
    single = scalars[0]
    soft = 0.01 * makespan + 1e-9
    inverse = 1.0 / makespan
    norm = 1.0 / single

    # timelines: the ops of each device by start, those that take time
    count = np.zeros(devices + 1, np.int64)
    for i in range(num_ops):
        if op_time[i, place[i]] > 0.0:
            count[place[i] + 1] += 1
    for d in range(devices):
        count[d + 1] += count[d]
    fill = count[:-1].copy()
    line = np.empty(count[devices], np.int64)
    line_start = np.empty(count[devices], np.float64)
    for k in range(num_ops):
        i = order[k]
        d = place[i]
        if op_time[i, d] > 0.0:
            line[fill[d]] = i
            line_start[fill[d]] = start[i]
            fill[d] += 1

    mean_latency = 0.0
    mean_rate = 0.0
    links = 0
    for a in range(devices):
        for b in range(devices):
            if a != b:
                links += 1
                mean_latency += latency[a, b]
                mean_rate += 1.0 / bandwidth[a, b]
    if links:
        mean_latency /= links
        mean_rate /= links

    load = np.zeros(devices)
    critical_load = np.zeros(devices)
    last = np.zeros(devices)
    egress = np.zeros(devices)
    ingress = np.zeros(devices)
    resident = np.zeros(devices)

    # arcs: how late may the tensor be for the most urgent reader of the group
    arcs = arc_src.shape[0]
    arc_slack = np.full(arcs, np.inf)
    for i in range(num_ops):
        latest = start[i] + slack[i]
        d = place[i]
        for e in range(in_ptr[i], in_ptr[i + 1]):
            a = in_arc[e]
            if a >= 0:
                u = in_src[e]
                c = place[u]
                arrival = finish[u]
                if c != d:
                    arrival += latency[c, d] + in_bytes[e] / bandwidth[c, d]
                arc_slack[a] = min(arc_slack[a], latest - arrival)

    for g in range(groups):
        first_start = np.inf
        last_finish = 0.0
        time = 0.0
        critical = 0.0
        least = np.inf
        wait = 0.0
        c = place[group_ops[group_ptr[g]]]
        for k in range(group_ptr[g], group_ptr[g + 1]):
            i = group_ops[k]
            t = op_time[i, c]
            w = np.exp(-slack[i] / soft)
            first_start = min(first_start, start[i])
            last_finish = max(last_finish, finish[i])
            time += t
            critical += w * t
            least = min(least, slack[i])
            ready = 0.0
            for e in range(in_ptr[i], in_ptr[i + 1]):
                u = in_src[e]
                arrival = finish[u]
                if place[u] != c:
                    arrival += latency[place[u], c] + in_bytes[e] / bandwidth[place[u], c]
                ready = max(ready, arrival)
            wait += w * max(0.0, start[i] - ready)
            for d in range(devices):
                pair[g, d, 1] += op_time[i, d] * norm
        load[c] += time
        critical_load[c] += critical
        last[c] = max(last[c], last_finish)
        resident[c] += group_params[g]
        node[g, 0] = time * norm
        node[g, 1] = critical * inverse
        node[g, 2] = np.sqrt(max(0.0, least) * inverse)
        node[g, 3] = min(4.0, wait * inverse)
        node[g, 4] = first_start * inverse
        node[g, 5] = last_finish * inverse
        node[g, 9] = group_params[g] / memory[c]
        node[g, 12] = np.log1p(group_ptr[g + 1] - group_ptr[g]) / 5.0
        node[g, 13] = makespan * norm
        node[g, 14] = scalars[1] * norm

    for a in range(arcs):
        u = arc_src[a]
        g = group[u]
        h = arc_dst[a]
        c = place[u]
        d = place[group_ops[group_ptr[h]]]
        mean = mean_latency + arc_bytes[a] * mean_rate
        tight = np.exp(-max(0.0, arc_slack[a]) / soft)
        node[g, 11] += mean * norm
        node[h, 10] += mean * norm
        pair[h, c, 5] += mean * norm
        pair[g, d, 6] += mean * norm
        pair[h, c, 8] += tight * mean * inverse
        pair[g, d, 9] += tight * mean * inverse
        p = arc_pair[a]
        edge[p, 0] += mean * norm
        edge[p, 2] = max(edge[p, 2], tight)
        if c != d:
            actual = latency[c, d] + arc_bytes[a] / bandwidth[c, d]
            egress[c] += actual
            ingress[d] += actual
            node[g, 8] += tight * actual * inverse
            node[h, 7] += tight * actual * inverse
            edge[p, 1] = 1.0
    for p in range(edge.shape[0]):
        edge[p, 0] = np.sqrt(edge[p, 0])

    guess = np.empty(num_ops)
    for g in range(groups):
        c = place[group_ops[group_ptr[g]]]
        here = pair[g, c, 5] + pair[g, c, 6]
        for d in range(devices):
            pair[g, d, 2] = pair[g, d, 1] - pair[g, c, 1]
            pair[g, d, 3] = load[d] * inverse
            pair[g, d, 7] = pair[g, d, 5] + pair[g, d, 6] - here
            pair[g, d, 17] = egress[d] * inverse
            pair[g, d, 18] = ingress[d] * inverse
            pair[g, d, 19] = critical_load[d] * inverse
            pair[g, d, 20] = last[d] * inverse
            if d == c:
                pair[g, d, 0] = 1.0
                pair[g, d, 4] = load[d] * inverse
                pair[g, d, 16] = resident[d] / memory[d]
                continue
            pair[g, d, 4] = load[d] * inverse + pair[g, d, 1] * single * inverse
            pair[g, d, 16] = (resident[d] + group_params[g]) / memory[d]
            late_self = -np.inf
            late_child = -np.inf
            late_displaced = -np.inf
            gain = 0.0
            mean_late = 0.0
            total_wait = 0.0
            total_time = 1e-9
            free = 0.0
            cursor = count[d]
            for k in range(group_ptr[g], group_ptr[g + 1]):
                i = group_ops[k]
                ready = free
                for e in range(in_ptr[i], in_ptr[i + 1]):
                    u = in_src[e]
                    if in_arc[e] < 0:
                        arrival = guess[u]
                    elif place[u] == d:
                        arrival = finish[u]
                    else:
                        arrival = finish[u] + latency[place[u], d] + in_bytes[e] / bandwidth[place[u], d]
                    ready = max(ready, arrival)
                t = op_time[i, d]
                begin = ready
                if t > 0.0:
                    # first op of the device that starts after `ready`; the one before it may still run
                    low = cursor
                    high = count[d + 1]
                    if low > count[d] and line_start[low - 1] > ready:
                        low = count[d]
                    while low < high:
                        middle = (low + high) // 2
                        if line_start[middle] <= ready:
                            low = middle + 1
                        else:
                            high = middle
                    cursor = low
                    if low > count[d]:
                        before = line[low - 1]
                        begin = max(begin, finish[before] + overhead[d])
                    end = begin + t
                    free = end + overhead[d]
                    total_wait += begin - ready
                    if low < count[d + 1]:
                        after = line[low]
                        late_displaced = max(late_displaced, free - start[after] - slack[after])
                else:
                    end = begin
                guess[i] = end
                late = end - finish[i] - slack[i]
                late_self = max(late_self, late)
                mean_late += t * max(0.0, late)
                total_time += t
                w = np.exp(-slack[i] / soft)
                gain = max(gain, w * (finish[i] - end))
                for e in range(out_ptr[i], out_ptr[i + 1]):
                    if not out_same[e]:
                        j = out_dst[e]
                        arrival = end
                        if place[j] != d:
                            arrival += latency[d, place[j]] + out_bytes[e] / bandwidth[d, place[j]]
                        late_child = max(late_child, arrival - start[j] - slack[j])
            pair[g, d, 10] = min(1.0, max(-0.3, late_self * inverse))
            pair[g, d, 11] = min(1.0, max(-0.3, late_child * inverse))
            pair[g, d, 12] = min(1.0, max(-0.3, late_displaced * inverse))
            pair[g, d, 13] = min(1.0, gain * inverse)
            pair[g, d, 14] = min(1.0, mean_late / total_time * inverse)
            pair[g, d, 15] = min(1.0, total_wait * inverse)
