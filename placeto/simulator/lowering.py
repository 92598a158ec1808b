"""Lowering: the ops, edges and devices by which a placement adds up gradients, and sends parameters to other hosts.

A graph in micro-batches has a chain of ops that add up a gradient: see `placeto.problem.graph.gradient_sums`. The
placement decides on which devices they run. The contributions of each device are summed there, in the order of the
micro-batches. Then the sums of each other host are added up on one of the devices that have them. Then the sums of the
home's host and those of the other hosts are added up at the parameter's home. Each op of the chain stays one op, but
gets other inputs and a device: its entry in the placement is not used. A parameter that several devices of another host
read crosses to this host once, to one of these devices. There an op of no cost, a relay, passes it on to the others.

On another host, the device that adds up or passes on is the one with the home's number within its host. If this device
takes no part, it is the next one that does. So homes on different devices spread this work over the devices.

The lowered problem is a `FlatProblem` like any other: N ops of the graph, then R relays; E edges, then one edge into
each relay; T tensors, then that of each relay. A problem without sums and relays is its own lowering.

Legend: N ops, T tensors, E edges, D devices, H hosts, Q copied tensors, R = Q * H relays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.plumbing.array_kernels import copy_into, stable_argsort
from placeto.plumbing.by_reference import reference
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import LIST, FlatProblem
from placeto.problem.flat_sums import HEADER


class Sums(NamedTuple):
    """The arrays of `placeto.problem.flat_sums.lowering_array`, all int64, which describe the sums and relays."""

    host: np.ndarray  # (D,)
    home: np.ndarray  # (S,)
    home_edge: np.ndarray  # (S,)
    ptr: np.ndarray  # (S+1,)
    part_tensor: np.ndarray  # (C,)
    part_add: np.ndarray  # (C,)
    part_edge: np.ndarray  # (C,)
    part_out: np.ndarray  # (C,)
    copied: np.ndarray  # (Q,)
    reader_ptr: np.ndarray  # (Q+1,)
    reader_edge: np.ndarray
    relay_rank: np.ndarray  # (R,)
    relay_priority: np.ndarray  # (R,)
    dst: np.ndarray  # (E+R,)
    tensor: np.ndarray  # (E+R,)
    named: np.ndarray  # (E+R,)


class Wired(NamedTuple):
    """Ops and tensors of a lowered problem, which are filled step by step."""

    place: np.ndarray  # (N+R,) int64, device of each op and relay
    tensor_of: np.ndarray  # (E+R,) int64, the tensor that each edge carries
    src: np.ndarray  # (T+R,) int64, producer of each tensor
    size: np.ndarray  # (T+R,) int64, bytes of each tensor
    live: np.ndarray  # (T+R,) int64, bytes that each tensor takes on its producer's device
    storage: np.ndarray  # (T+R,) int64, see `FlatProblem`


@compiled(inner=True)
def num_relays(flat: FlatProblem) -> int:
    """R, the number of relays of a problem."""
    return flat.lowering[0] if len(flat.lowering) > 0 else 0


@compiled(inner=True)
def _slice(data: np.ndarray, cursor: np.ndarray, count: int) -> np.ndarray:
    first = cursor[0]
    cursor[0] += count
    return data[first : cursor[0]]


@compiled(inner=True)
def _unpacked(data: np.ndarray, d: int) -> Sums:
    cursor = np.full(1, HEADER)
    relays, sums, parts, copied, readers, edges = data[0], data[2], data[3], data[4], data[5], data[6]
    unpacked = Sums(
        _slice(data, cursor, d),
        _slice(data, cursor, sums),
        _slice(data, cursor, sums),
        _slice(data, cursor, sums + 1),
        _slice(data, cursor, parts),
        _slice(data, cursor, parts),
        _slice(data, cursor, parts),
        _slice(data, cursor, parts),
        _slice(data, cursor, copied),
        _slice(data, cursor, copied + 1),
        _slice(data, cursor, readers),
        _slice(data, cursor, relays),
        _slice(data, cursor, relays),
        _slice(data, cursor, edges),
        _slice(data, cursor, edges),
        _slice(data, cursor, edges),
    )
    return reference(unpacked)


@compiled(inner=True)
def _nearest(taking_part: np.ndarray, host: np.ndarray, sought: int, number: np.ndarray, home: int) -> int:
    """Return the device of host `sought` that takes part and has the home's number, or the next in a circle; or -1."""
    nearest, least = -1, len(host)
    for device in range(len(host)):
        if host[device] == sought and taking_part[device]:
            distance = (number[device] - number[home]) % len(host)
            if distance < least:
                nearest, least = device, distance
    return nearest


@compiled(inner=True)
def _sum_up(sums: Sums, hosts: int, wired: Wired) -> None:
    """Set the inputs and devices of the ops that add gradients."""
    host, place, src = sums.host, wired.place, wired.src
    d = len(host)
    number = _numbers(host, hosts)
    sum_on, free, takes_part = np.empty(d, np.int64), np.empty(len(sums.part_tensor), np.int64), np.empty(d, np.bool_)
    for s in range(len(sums.home)):
        home, spare, used = place[sums.home[s]], 0, 0
        sum_on[:] = -1  # the tensor with the sum of each device so far
        for c in range(sums.ptr[s], sums.ptr[s + 1]):
            tensor = sums.part_tensor[c]
            device = place[src[tensor]]
            if sum_on[device] >= 0:
                sum_on[device] = _add(sums, c, device, home, sum_on[device], tensor, wired)
                continue
            sum_on[device] = tensor
            if device == home:
                wired.live[tensor] = 0  # it has the memory of the gradient
            if c > sums.ptr[s]:
                free[spare] = c
                spare += 1
        for remote in range(hosts):
            if remote == host[home]:
                continue
            for device in range(d):
                takes_part[device] = sum_on[device] >= 0
            first = _nearest(takes_part, host, remote, number, home)
            for device in range(d):
                if host[device] == remote and sum_on[device] >= 0 and device != first:
                    sum_on[first] = _add(sums, free[used], first, home, sum_on[first], sum_on[device], wired)
                    sum_on[device] = -1
                    used += 1
        total = sum_on[home]
        for near in (True, False):  # devices of the home's host first
            for device in range(d):
                if device == home or sum_on[device] < 0 or (host[device] == host[home]) != near:
                    continue
                if total < 0:
                    total = sum_on[device]
                else:
                    total = _add(sums, free[used], home, home, total, sum_on[device], wired)
                    used += 1
        wired.tensor_of[sums.home_edge[s]] = total


@compiled(inner=True)
def _add(sums: Sums, c: int, device: int, home: int, total: int, tensor: int, wired: Wired) -> int:
    """Let the op of contribution `c` add a tensor to a total on a device; returns the tensor that it makes.

    It adds in place: the new tensor has the memory of the total, and at home that of the gradient.
    """
    result, edge = sums.part_out[c], sums.part_edge[c]
    wired.place[sums.part_add[c]] = device
    wired.tensor_of[edge], wired.tensor_of[edge + 1] = total, tensor
    if device == home:
        wired.live[result] = 0
    else:
        wired.storage[result] = wired.storage[total]
    return result


@compiled(inner=True)
def _numbers(host: np.ndarray, hosts: int) -> np.ndarray:
    """(D,) number of each device within its host."""
    number, counts = np.empty(len(host), np.int64), np.zeros(hosts, np.int64)
    for device in range(len(host)):
        number[device] = counts[host[device]]
        counts[host[device]] += 1
    return number


@compiled(inner=True)
def _pass_on(sums: Sums, hosts: int, n: int, t: int, wired: Wired) -> None:
    """Set the inputs and devices of the relays, and let ops on other hosts read the relays' tensors."""
    host, place, src, size = sums.host, wired.place, wired.src, wired.size
    number, reads = _numbers(host, hosts), np.empty(len(host), np.bool_)
    first = len(sums.dst) - len(sums.relay_rank)  # edge into the first relay
    for q in range(len(sums.copied)):
        tensor = sums.copied[q]
        home = place[src[tensor]]
        reads[:] = False
        for k in range(sums.reader_ptr[q], sums.reader_ptr[q + 1]):
            reads[place[sums.dst[sums.reader_edge[k]]]] = True
        for remote in range(hosts):
            relay, readers = q * hosts + remote, 0
            place[n + relay], src[t + relay] = home, n + relay
            size[t + relay] = wired.live[t + relay] = size[tensor]
            wired.tensor_of[first + relay] = tensor
            for device in range(len(host)):
                readers += reads[device] and host[device] == remote
            if remote != host[home] and readers > 1:
                place[n + relay] = _nearest(reads, host, remote, number, home)
                for k in range(sums.reader_ptr[q], sums.reader_ptr[q + 1]):
                    edge = sums.reader_edge[k]
                    if host[place[sums.dst[edge]]] == remote:
                        wired.tensor_of[edge] = t + relay


@compiled(inner=True)
def _wired(flat: FlatProblem, placement: np.ndarray, sums: Sums, hosts: int) -> Wired:
    """Return the ops and tensors of the lowered problem."""
    n, t, relays = len(flat.op_rank), len(flat.tensor_src), len(sums.relay_rank)
    wired = Wired(
        np.empty(n + relays, np.int64),
        sums.tensor.copy(),
        np.empty(t + relays, np.int64),
        np.empty(t + relays, np.int64),
        np.empty(t + relays, np.int64),
        np.arange(t + relays),
    )
    for op in range(n):
        wired.place[op] = placement[op]
    for i in range(t):
        wired.src[i], wired.size[i] = flat.tensor_src[i], flat.tensor_bytes[i]
        wired.live[i], wired.storage[i] = flat.live_bytes[i], flat.storage[i]
    _sum_up(sums, hosts, wired)
    _pass_on(sums, hosts, n, t, wired)
    return wired


@compiled(inner=True)
def _sorted_edges(sums: Sums, wired: Wired) -> tuple[np.ndarray, ...]:
    """Sort the edges by producer and by tensor, and return six arrays of `FlatProblem`, in its order."""
    dst, named, tensor_of, src = sums.dst, sums.named, wired.tensor_of, wired.src
    out_ptr, tensor_ptr = np.zeros(len(wired.place) + 1, np.int64), np.zeros(len(src) + 1, np.int64)
    for edge in range(len(dst)):
        out_ptr[src[tensor_of[edge]] + 1] += 1
        tensor_ptr[tensor_of[edge] + 1] += 1
    for op in range(len(wired.place)):
        out_ptr[op + 1] += out_ptr[op]
    for tensor in range(len(src)):
        tensor_ptr[tensor + 1] += tensor_ptr[tensor]
    out_child, out_tensor = np.empty(len(dst), np.int64), np.empty(len(dst), np.int64)
    named_child, tensor_child = np.empty(len(dst), np.int64), np.empty(len(dst), np.int64)
    cursor, tensor_cursor = out_ptr.copy(), tensor_ptr.copy()
    for edge in range(len(dst)):
        tensor = tensor_of[edge]
        op = src[tensor]
        out_child[cursor[op]], out_tensor[cursor[op]] = dst[edge], tensor
        cursor[op] += 1
    cursor = out_ptr.copy()
    for edge in named:
        tensor = tensor_of[edge]
        op = src[tensor]
        named_child[cursor[op]] = tensor_child[tensor_cursor[tensor]] = dst[edge]
        cursor[op] += 1
        tensor_cursor[tensor] += 1
    return out_ptr, out_child, out_tensor, named_child, tensor_ptr, tensor_child


@compiled(inner=True)
def _listed(priority: np.ndarray, sums: Sums, wired: Wired, out_ptr: np.ndarray, out_child: np.ndarray) -> np.ndarray:
    """(N+R,) int64, the list of all ops, with sums after the ops whose tensors they add, relays before their readers.

    A sum that comes late enough in the given list keeps its place. The whole list is a topological order of the lowered
    graph, so devices that run their parts of it never wait for each other in a circle.
    """
    n, key = len(priority), np.empty(len(wired.place))
    for op in range(n):
        key[op] = priority[op]
    for s in range(len(sums.home)):
        changed = True
        while changed:
            changed = False
            for c in range(sums.ptr[s] + 1, sums.ptr[s + 1]):
                for edge in range(sums.part_edge[c], sums.part_edge[c] + 2):
                    least = key[wired.src[wired.tensor_of[edge]]] + 1e-3
                    if key[sums.part_add[c]] < least:
                        key[sums.part_add[c]] = least
                        changed = True
        home = sums.home[s]
        key[home] = max(key[home], key[wired.src[wired.tensor_of[sums.home_edge[s]]]] + 1e-3)
    for relay in range(n, len(key)):
        key[relay] = len(key)  # kept if no op reads it
        for k in range(out_ptr[relay], out_ptr[relay + 1]):
            key[relay] = min(key[relay], key[out_child[k]] - 5e-4)
    return stable_argsort(key)


@compiled()
def lowered(flat: FlatProblem, placement: np.ndarray) -> tuple[FlatProblem, np.ndarray]:
    """Lower a problem by a placement (N or more entries).

    Returns the lowered problem, and the device of each op and relay (N+R,).
    """
    data = flat.lowering
    if len(data) == 0:
        return flat, placement
    n, d, hosts = len(flat.op_rank), len(flat.overhead_us), data[1]
    sums = _unpacked(data, d)
    wired = _wired(flat, placement, sums, hosts)
    out_ptr, out_child, out_tensor, named_child, tensor_ptr, tensor_child = _sorted_edges(sums, wired)
    ops = len(wired.place)
    tail, rank, priority, ranked = (
        np.zeros(ops),
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
        np.empty(ops, np.int64),
    )
    until = np.full(len(wired.src), -1)
    copy_into(until, flat.held_until)
    inputs, resident, later = np.ones(ops, np.int64), np.zeros(ops, np.int64), np.zeros(ops)
    for op in range(n):
        later[op] = flat.later_us[op]
        tail[op], rank[op], priority[op] = flat.tail_us[op], flat.op_rank[op], flat.priority[op]
        inputs[op], resident[op] = flat.num_inputs[op], flat.resident[op]
    for relay in range(ops - n):
        rank[n + relay], priority[n + relay] = sums.relay_rank[relay], sums.relay_priority[relay]
    if flat.dispatch[0] == LIST:
        ranked = _listed(priority[:n], sums, wired, out_ptr, out_child)
        for position in range(ops):
            priority[ranked[position]] = position
    else:
        for op in range(ops):
            ranked[priority[op]] = op
    low = FlatProblem(
        broadcast=flat.broadcast,
        link=flat.link,
        dispatch=flat.dispatch,
        link_gap_us=flat.link_gap_us,
        op_time=flat.op_time,
        later_us=later,
        tail_us=tail,
        op_rank=rank,
        priority=priority,
        ranked=ranked,
        num_inputs=inputs,
        resident=resident,
        out_ptr=out_ptr,
        out_child=out_child,
        out_tensor=out_tensor,
        named_child=named_child,
        tensor_ptr=tensor_ptr,
        tensor_child=tensor_child,
        tensor_src=wired.src,
        tensor_bytes=wired.size,
        storage=wired.storage,
        held_until=until,
        live_bytes=wired.live,
        overhead_us=flat.overhead_us,
        launch_us=flat.launch_us,
        memory=flat.memory,
        device_rank=flat.device_rank,
        bandwidth=flat.bandwidth,
        latency_us=flat.latency_us,
        path_ptr=flat.path_ptr,
        path_link=flat.path_link,
        shared_bandwidth=flat.shared_bandwidth,
        lowering=data[:0],
    )
    return reference(low), wired.place
