"""Orders for a placed step in micro-batches that bound how many chunks each device holds at the same time.

A chunk is what one device runs of the forward pass of one micro-batch between two other devices, with what the backward
pass does for it there. In a pipeline a device has one chunk of each micro-batch, in an interleaved pipeline several. A
device holds a chunk from its first op until its backward pass has ended there.

The orders are made by greedy list scheduling, as for the zero-bubble schedules of Qi et al., ICLR 2024 (arXiv
2401.10241). Of its ready ops a device first runs those of the backward pass for which other layers wait, then those of
the forward pass, then gradients of weights, for which only the sums of gradients wait. A device begins no further chunk
while it holds as many as its bound. The list schedule takes transfers to wait for nothing. This matters little for an
order, since the simulator then computes the makespan.

Legend: N ops, E edges, R relays, D devices, C chunks, M micro-batches.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from placeto.heuristics.pipelines.alternating_orders import Chunks, in_turns, turns
from placeto.plumbing.compiling import compiled
from placeto.problem.dispatch import order_of_lists
from placeto.problem.flat import FlatProblem
from placeto.problem.graph.label_values import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem
from placeto.simulator.lowering import lowered

_SHARED, _BACKWARD, _FORWARD, _DEFERRED = range(4)
"""Classes of ops, in the order in which a device prefers them: in no micro-batch, gradients that other layers wait for,
the forward pass, gradients of weights."""
_ENDS, _ARRIVES, _IDLE = range(3)
"""Kinds of events: an op ends, the last input of an op arrives, the overhead after an op ends."""


def bounded_orders(
    problem: PlacementProblem,
    placement: np.ndarray,
    defer: bool = True,
    falling: bool = False,
    held: np.ndarray | None = None,
) -> Iterator[np.ndarray]:
    """Yield orders (N,) of all ops for a placement (N,).

    There are none if the graph has fewer than two micro-batches, or no op of their forward passes.

    Let P be the number of devices that a micro-batch runs on, the most of any. The bound of a device is the number of
    chunks that P, P + 1 or 2 P micro-batches have there. Of ready ops of the forward pass, those of later chunks come
    first. If a device has several chunks of a micro-batch, there are also orders in which it takes the micro-batches in
    rounds of P: the first chunk of all of them, then the second chunk of all. The last order is that of
    `placeto.heuristics.pipelines.alternating_orders`.

    Gradients of weights that are deferred keep activations in memory until then. Without `defer` they are in the class
    of the other gradients, ready ops of a class run in the order of the program, as in PyTorch, and there are only
    orders of the least bound.

    If the bounds are `falling`, that of a chunk is the number of chunks from it to the end, as in 1F1B. There is then
    one order, or none if a device has several chunks of a micro-batch. If the number of chunks that each device may
    hold is given, `held` (D,), there are only the orders with these bounds.
    """
    graph, devices = problem.graph, problem.num_devices
    place = np.ascontiguousarray(placement, np.int64)
    if (placed := _placed(problem, place.tobytes(), defer)) is None:
        return
    count, width, held_each = graph.num_micro_batches, placed.width, placed.chunks_each
    most = dict.fromkeys(min(bound, count) for bound in ((width, width + 1, 2 * width) if defer else (width,)))
    bounds = [bound * held_each for bound in most]
    if falling:
        to_end = np.zeros(devices, np.int64)
        np.maximum.at(to_end, placed.chunks.device, width - placed.chunks.depth)
        bounds = [to_end] if held_each.max() == 1 else []
    if held is not None:
        bounds = [held]
    on = placed.on
    for bound in bounds:
        for rank in placed.ranks:
            order = _list_schedule(placed.low, on, rank, placed.begins, placed.chunk, np.maximum(1, bound))
            order = order[order < len(place)]
            yield order_of_lists(graph, [order[on[order] == device] for device in range(devices)])  # as in files
    if falling or not defer or held is not None:
        return
    ops, flat, chunks = len(place), problem.arrays, placed.chunks
    chunk, kind, time = placed.chunk[:ops], placed.kind, problem.op_time[np.arange(ops), place]
    split = bool(np.isin(chunk[(kind == _BACKWARD) & (time > 0.0)], chunk[kind == _DEFERRED]).any())
    number_of_chunk, belongs = np.searchsorted(placed.begun, chunk), np.isin(chunk, placed.begun)
    turn = np.full(ops, np.nan)
    for op_class, pass_turns in zip((_FORWARD, _BACKWARD, _DEFERRED), turns(chunks, split), strict=True):
        mine = belongs & (kind == op_class)
        turn[mine] = pass_turns[number_of_chunk[mine]]
    order = in_turns(graph.topological_order, flat.out_ptr, flat.out_child, place, turn, devices)
    yield order_of_lists(graph, [order[place[order] == device] for device in range(devices)])


class _Placed(NamedTuple):
    """A placed step, and what its orders have in common."""

    low: FlatProblem  # as the placement lowers it
    on: np.ndarray  # (N+R,) int64, device of each op and relay
    kind: np.ndarray  # (N,) int64, class of each op
    begins: np.ndarray  # (N+R,) bool, ops of the forward pass
    chunk: np.ndarray  # (N+R,) int64, chunk of each op, -1 = none
    begun: np.ndarray  # (C,) int64, the chunks that have a forward pass
    chunks: Chunks  # where these are
    width: int  # number of devices that a micro-batch runs on, the most of any
    chunks_each: np.ndarray  # (D,) int64, chunks of a micro-batch on each device
    ranks: tuple[np.ndarray, ...]  # (N+R,) int64 each: of the ready ops on a device, that with the least rank starts


@lru_cache(maxsize=2)
def _placed(problem: PlacementProblem, placement: bytes, defer: bool) -> _Placed | None:
    """Return what the orders of a placement have in common; None if there are none; see `bounded_orders`; cached."""
    graph, place = problem.graph, np.frombuffer(placement, np.int64).copy()
    micro_batch, count = graph.micro_batches, graph.num_micro_batches
    backward = np.array([kind in BACKWARD_PASSES for kind in graph.passes])
    forward = ~backward & (micro_batch != NO_MICRO_BATCH)
    if count < 2 or not forward.any():
        return None
    time, flat = problem.op_time[np.arange(len(place)), place], problem.arrays
    depth, owner, deferred = _chunks(
        graph.topological_order, flat.out_ptr, flat.out_child, place, micro_batch, backward, time
    )
    kind = np.where(backward, np.where(deferred & defer, _DEFERRED, _BACKWARD), _FORWARD)
    kind[micro_batch == NO_MICRO_BATCH] = _SHARED
    key = (place * count + micro_batch) * (int(owner.max()) + 1) + owner
    names, of_op = np.unique(key[owner >= 0], return_inverse=True)
    chunk = np.full(len(place), -1)
    chunk[owner >= 0] = of_op
    begun = np.unique(chunk[forward])
    of_device, of_batch = np.divmod(names[begun] // (int(owner.max()) + 1), count)
    visits = np.unique(of_device * count + of_batch)  # pairs of a device and a micro-batch that runs there
    visited = np.bincount(visits // count, minlength=problem.num_devices)
    chunks_each = np.ceil(np.bincount(of_device, minlength=problem.num_devices) / np.maximum(visited, 1))
    width = int(np.bincount(visits % count).max())
    within = problem.under("priority").priority if defer else np.arange(len(place))  # a class and a micro-batch
    low, on = lowered(flat, place) if len(flat.lowering) else (flat, place)
    relays = len(on) - len(place)
    rules = [(np.where(forward, -depth, 0), micro_batch)]
    if chunks_each.max() > 1:
        rules.append((np.where(forward, micro_batch // width, 0), np.where(forward, depth, 0)))
    return _Placed(
        low=low,
        on=on,
        kind=kind,
        begins=np.append(forward, np.zeros(relays, bool)),
        chunk=np.append(chunk, np.full(relays, -1)),
        begun=begun,
        chunks=Chunks(of_device, of_batch, names[begun] % (int(owner.max()) + 1)),
        width=width,
        chunks_each=chunks_each.astype(np.int64),
        ranks=tuple(
            np.append(relays + np.argsort(np.lexsort((within, micro_batch, *reversed(rule), kind))), np.arange(relays))
            for rule in rules
        ),
    )


@compiled()
def _chunks(
    order: np.ndarray,
    ptr: np.ndarray,
    child: np.ndarray,
    place: np.ndarray,
    micro_batch: np.ndarray,
    backward: np.ndarray,
    time: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the chunk of each op, and the gradients of weights.

    Args:
        order: (N,) ops in topological order.
        ptr: (N+1,) offsets of each op's children in `child`.
        child: (E,) ops that read each op's outputs.
        place: (N,) device of each op.
        micro_batch: (N,) micro-batch of each op, below 0 = none.
        backward: (N,) bool, ops of the backward pass.
        time: (N,) us, op times.

    Returns:
        (N,) how often the micro-batch's forward pass changes devices before each forward op. (N,) the same for the
        forward pass of the op's chunk, -1 if the op is in no chunk. (N,) bool, whether an op is a gradient that no op
        of a micro-batch waits for, except such gradients that take no time.
    """
    ops = len(place)
    depth, owner, deferred = np.zeros(ops, np.int64), np.full(ops, -1), np.zeros(ops, np.bool_)
    for op in order:
        if micro_batch[op] < 0:
            continue
        if not backward[op]:
            owner[op] = depth[op]
        for k in range(ptr[op], ptr[op + 1]):
            next_op = child[k]
            if micro_batch[next_op] != micro_batch[op]:
                continue
            if not backward[next_op]:
                depth[next_op] = max(depth[next_op], depth[op] + (place[next_op] != place[op]))
            elif place[next_op] == place[op] and (not backward[op] or owner[next_op] < 0):
                owner[next_op] = max(owner[next_op], owner[op])
    lost = backward & (owner < 0)  # ops that recompute a checkpoint from tensors of another device
    for op in order:
        if micro_batch[op] < 0:
            continue
        for k in range(ptr[op], ptr[op + 1]):
            next_op = child[k]
            if not lost[next_op] or micro_batch[next_op] != micro_batch[op]:
                continue
            if not backward[op]:
                owner[next_op] = max(owner[next_op], depth[op] + (place[next_op] != place[op]))
            elif place[next_op] == place[op] and owner[next_op] < 0:
                owner[next_op] = owner[op]
    for op in order[::-1]:
        if backward[op] and micro_batch[op] >= 0:
            deferred[op] = True
            for k in range(ptr[op], ptr[op + 1]):
                if micro_batch[child[k]] >= 0 and (time[child[k]] > 0.0 or not deferred[child[k]]):
                    deferred[op] = False
    return depth, owner, deferred


@compiled()
def _list_schedule(
    flat: FlatProblem,
    place: np.ndarray,
    rank: np.ndarray,
    begins: np.ndarray,
    chunk: np.ndarray,
    bound: np.ndarray,
) -> np.ndarray:
    """(N+R,) ops in the order in which a greedy list schedule starts them.

    Args:
        flat: a lowered problem.
        place: (N+R,) device of each op.
        rank: (N+R,) rank of each op; of the ready ops on a device, the one with the least rank starts.
        begins: (N+R,) bool, ops of the forward pass.
        chunk: (N+R,) chunk of each op, -1 = none.
        bound: (D,) how many chunks a device holds at most. If all devices wait for each other, one more chunk begins.
    """
    devices, ops = len(bound), len(place)
    missing, arrival, ops_left = flat.num_inputs.copy(), np.zeros(ops), np.zeros(ops, np.int64)
    ready, waiting = np.empty((devices, ops), np.int64), np.zeros(devices, np.int64)
    busy, changed = np.zeros(devices, np.bool_), np.ones(devices, np.bool_)
    begun, live = np.zeros(ops, np.bool_), np.zeros(devices, np.int64)
    for op in range(ops):
        if chunk[op] >= 0:
            ops_left[chunk[op]] += 1
    events = [(0.0, _ARRIVES, op) for op in range(ops) if missing[op] == 0]
    order, started, now, stuck = np.empty(ops, np.int64), 0, 0.0, False
    while started < ops:
        while len(events) > 0 and events[0][0] == now:
            _, event, op = heapq.heappop(events)
            device = place[op]
            changed[device] = True
            if event == _ARRIVES:
                ready[device, waiting[device]] = op
                waiting[device] += 1
            elif event == _ENDS and flat.overhead_us[device] > 0.0 and flat.op_time[op * devices + device] > 0.0:
                heapq.heappush(events, (now + flat.overhead_us[device], _IDLE, op))
            else:
                busy[device] = False
            if event == _ENDS and chunk[op] >= 0:
                ops_left[chunk[op]] -= 1
                if ops_left[chunk[op]] == 0 and begun[chunk[op]]:
                    live[device] -= 1
            if event == _ENDS:
                _send(flat, place, op, now, arrival, missing, events)
        for device in range(devices):
            if busy[device] or not (changed[device] or stuck):
                continue
            changed[device] = False
            chosen, least = -1, ops
            for i in range(waiting[device]):
                op = ready[device, i]
                if rank[op] < least and (not begins[op] or begun[chunk[op]] or live[device] < bound[device] or stuck):
                    chosen, least = i, rank[op]
            if chosen < 0:
                continue
            op = ready[device, chosen]
            waiting[device] -= 1
            ready[device, chosen] = ready[device, waiting[device]]
            if begins[op] and not begun[chunk[op]]:
                begun[chunk[op]] = True
                live[device] += 1
            busy[device], stuck = True, False
            heapq.heappush(events, (now + flat.op_time[op * devices + device], _ENDS, op))
            order[started] = op
            started += 1
        stuck = len(events) == 0
        if not stuck:
            now = events[0][0]
    return order


@compiled(inner=True)
def _send(
    flat: FlatProblem,
    place: np.ndarray,
    op: int,
    now: float,
    arrival: np.ndarray,
    missing: np.ndarray,
    events: list[tuple[float, int, int]],
) -> None:
    """Note when an op's tensors arrive at its readers; add an event for each reader that then has all its inputs."""
    device, devices = place[op], len(flat.overhead_us)
    for k in range(flat.out_ptr[op], flat.out_ptr[op + 1]):
        reader, arrives = flat.out_child[k], now
        if place[reader] != device:
            pair = device * devices + place[reader]
            arrives += flat.latency_us[pair] + flat.tensor_bytes[flat.out_tensor[k]] / flat.bandwidth[pair]
        arrival[reader] = max(arrival[reader], arrives)
        missing[reader] -= 1
        if missing[reader] == 0:
            heapq.heappush(events, (arrival[reader], _ARRIVES, reader))
