"""The step of a pipeline in whole chunks, as torchrun runs it, with the parameters of a stage on each replica.

A rank has a buffer for each tensor that it receives from another stage, of each micro-batch, for the whole step. A
tensor that arrives before its chunk begins counts twice until then. Of a backward pass in two chunks, the first frees
nothing that the forward pass has kept. After its last chunk a rank adds up the gradients of its stages with the other
replicas, by all-reduce in a ring in the order of the cluster, and divides them by the number of micro-batches. No
parameter is sent. Each replica keeps the state of the optimizer, or a part of it if the plan shards it (ZeRO 1). Each
device keeps to the list of its chunks. A stage that reads tables of a stage before it, which depend on no input and no
weight, computes them itself at the beginning of each forward pass.

Costs that `placeto profile --processes` has measured have the time that torch takes in addition to the ops: for a
chunk, for a backward pass in two chunks in place of one, and for the additions of a ring. With other costs, a chunk
takes the time of its ops. An addition of a ring of GPUs then takes what a collective takes beside its transfers, which
have all of a link, as those between stages have. Nothing else runs on the device meanwhile. On CPUs, it is an op.

Legend: N ops, S stages, R replicas, D devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from placeto.problem.cluster import STATIC_ORDERS
from placeto.problem.costs.profiled import Fit
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.fused_attention import saved
from placeto.problem.graph.gradient_sums import contributions, gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.forward_pass import tables
from placeto.simulator.readings.memory_timeline import RECEIVE
from placeto.simulator.result import PlacementResult, as_listed
from placeto.simulator.schedule import Schedule, simulate
from placeto.simulator.tool_steps.chunk_order import ChunkOrder, order_chunks
from placeto.simulator.tool_steps.routes import ring, shares
from placeto.simulator.tool_steps.step_graph import (
    ADDITION,
    Exchange,
    Output,
    Record,
    StepGraph,
    addition,
    exchange_links,
)

CHUNK, SPLIT, SUM = "torchrun.chunk", "torchrun.split", "torchrun.sum"
"""Names in measured costs for the time that torch takes in addition to the ops: for a chunk; for I and W in place of B,
for each parameter of the stage and each of its bytes; and for a ring's addition, for each tensor and byte."""


class _Gradients(NamedTuple):
    """The gradients of a stage."""

    bytes: int = 0
    tensors: int = 0


def in_whole_chunks(result: PlacementResult, ordered: bool = False) -> tuple[PlacementResult, PlacementResult]:
    """Return a plan's placement with its best order of whole chunks, and the same placement as torch runs it.

    The order is made from the placement's own order of ops, or, unless it is `ordered`, from one of the static orders.
    Chunks in the fastest order of ops took up to 25 % longer than the ops. Chunks of another order took up to 11 % less
    time than these (15 plans of transformers on three clusters). If torch needs too much memory for the best order, it
    is the next one that fits. The second result is of another graph: see `pipeline_step`.

    Raises:
        PlanError: torch can't run the placement.
    """
    orders = _orders(result.schedule(), ordered=ordered)
    first, *others = sorted(orders, key=lambda made: (not made.schedule.fits, _us(made), _fullest(made)))
    if (best := _placed(result, first))[1].fits:
        return best
    fitting = (_placed(result, made) for made in others if made.schedule.fits)  # torch needs no less than its chunks
    return next((step for step in fitting if step[1].fits), best)


def _placed(result: PlacementResult, chunks: ChunkOrder) -> tuple[PlacementResult, PlacementResult]:
    """Return a plan's placement with an order of chunks, and the same as torch runs it."""
    problem, schedule = result.problem, chunks.schedule
    started = schedule.order[schedule.order < problem.num_ops]
    order, schedule = as_listed(problem, schedule.placement[: problem.num_ops], started)
    placement, makespan, fits = schedule.placement, schedule.makespan_us, schedule.fits
    placed = replace(result, placement=placement, makespan_us=makespan, fits=fits, order=order, plan=chunks.plan)
    return placed, pipeline_step(replace(chunks, schedule=schedule))


def with_least_memory(schedule: Schedule, alike: bool = False) -> ChunkOrder:
    """Return a plan's chunks in the order that needs the least memory, of those that take no longer than its own.

    Raises:
        PlanError: see `order_chunks`.
    """
    own, *others = _orders(schedule, alike)
    return min((own, *(other for other in others if _us(other) <= _us(own))), key=_fullest)


def _orders(schedule: Schedule, alike: bool = False, ordered: bool = False) -> list[ChunkOrder]:
    """The chunks in the schedule's own order, and in those of static orders unless the plan has the order."""
    orders = [order_chunks(schedule, alike)]
    if schedule.plan is not None and not schedule.plan.chunks and not ordered:
        for order in STATIC_ORDERS:
            static = simulate(schedule.problem.under(order), schedule.placement, plan=schedule.plan)
            orders.append(order_chunks(static, alike))
    return orders


def _us(made: ChunkOrder) -> float:
    """The makespan to six digits: the sums of equal times differ in the last ones."""
    return float(f"{made.schedule.makespan_us:.6g}")


def _fullest(made: ChunkOrder) -> float:
    """The share of its memory that the fullest device needs."""
    return float((made.schedule.peak_memory / made.schedule.problem.cluster.memory).max())


def pipeline_step(order: ChunkOrder) -> PlacementResult:
    """Return a plan in whole chunks as torch runs it.

    The result is of another graph, which also has the ops that torch adds to the step.
    """
    schedule, stage, devices, kinds = order.schedule, order.stage, order.plan.replicas, order.kinds
    problem, graph, names = schedule.problem, schedule.problem.graph, schedule.problem.cluster.device_names
    step, stage_tables = StepGraph(problem, schedule.placement), _own_tables(graph, stage)
    readers = _readers(step, {(op, order.plan.device_of(*key)) for key, ops in stage_tables.items() for op in ops})
    step.copy(readers, {}, any(order.plan.sharding))
    gradients = dict[int, _Gradients]()
    for tensor in dict(contributions(graph)).values():  # one for each parameter
        before = gradients.get(number := int(stage[graph.producer[tensor]]), _Gradients())
        gradients[number] = _Gradients(before.bytes + int(graph.output_bytes[tensor]), before.tensors + 1)
    lists = [[op for op in ops.tolist() if step.kept[op]] for ops in schedule.device_order]
    _add_chunks(step, lists, stage, kinds, gradients, stage_tables)
    for ops in lists:
        step.keep([op for op in ops if stage[op] < 0])  # which add up losses
    for number in sorted(gradients):
        replicas = sorted({row[number] for row in devices})
        if len(replicas) > 1:
            _all_reduce(step, number, replicas, gradients[number])
        for device in replicas:
            name, size = f"gradients of stage {number} divided on {names[device]}", gradients[number].bytes
            fields = {"type": ADDITION, "pass": "backward", "flops": size / 4, "bytes_accessed": 2.0 * size}
            step.add(name, device, fields)
    made, placement, listed = step.built(listed=True)
    return PlacementResult.of(simulate(made, placement, order=listed), listed)


def _own_tables(graph: ComputationGraph, stage: np.ndarray) -> dict[tuple[int, int], list[int]]:
    """Return stage and micro-batch -> the tables of stages before it that the stage computes there, in their order."""
    table, stage_tables = tables(graph), defaultdict[tuple[int, int], set[int]](set)
    apart = table[graph.edge_src] & (stage[graph.edge_dst] >= 0) & (stage[graph.edge_src] != stage[graph.edge_dst])
    for edge in np.flatnonzero(apart).tolist():
        reader, pending = int(graph.edge_dst[edge]), [int(graph.edge_src[edge])]
        known = stage_tables[int(stage[reader]), int(graph.micro_batches[reader])]
        while pending:
            if (op := pending.pop()) not in known:
                known.add(op)
                pending += [source for source in graph.reads[op] if table[source]]
    return {key: sorted(ops) for key, ops in stage_tables.items()}  # ops of a captured graph are in program order


def _readers(step: StepGraph, copies: set[tuple[int, int]]) -> dict[int, list[int]]:
    """Return op of no micro-batch -> the devices on which ops read it, themselves or by way of ops on it alone.

    Args:
        step: the step.
        copies: further ops that are computed on a device.
    """
    graph, device = step.captured, step.device
    on: dict[int, set[int]] = {op: set() for op in np.flatnonzero(step.shared & ~step.summed).tolist()}
    for reader, where in copies:
        for source in graph.reads[reader]:
            if source in on:
                on[source].add(where)
    edges = np.flatnonzero(step.shared[graph.edge_src] & step.kept[graph.edge_dst])
    for op, reader in zip(graph.edge_src[edges].tolist(), device[graph.edge_dst[edges]].tolist(), strict=True):
        on[op].add(reader)
    for op in (op for op in graph.topological_order[::-1].tolist() if op in on):
        on[op] = on[op] or {int(device[op])}
        for source in graph.reads[op]:
            on[source] |= on[op]
    return {op: sorted(devices) for op, devices in on.items()}


def _add_chunks(
    step: StepGraph,
    lists: Sequence[Sequence[int]],
    stage: np.ndarray,
    kinds: Sequence[str],
    gradients: dict[int, _Gradients],
    stage_tables: Mapping[tuple[int, int], Sequence[int]],
) -> None:
    """Add the ops of each device's chunks, each followed by the sums of the gradients that it contributes to.

    A forward pass begins with the tables that the stage computes itself, those of `stage_tables`. Before the first op
    that reads another tensor of another device comes an op that receives the tensor. Its output has memory for the
    whole step, since torch makes a buffer for each tensor that a stage receives, and keeps it.
    """
    graph, sums = step.captured, gradient_sums(step.captured)
    # Home of a parameter's gradient -> an op that adds to this gradient.
    adding = dict(zip(sums.home.tolist(), sums.addition[sums.ptr[:-1] + 1].tolist(), strict=True))
    contributed = defaultdict[int, list[tuple[int, int]]](list)
    for home, tensor in contributions(graph):
        contributed[int(graph.producer[tensor])].append((home, tensor))
    received = dict[tuple[int, int], Output]()  # tensor and device -> what the tensor is there
    sent = (graph.output_bytes[graph.edge_tensor] > 0) & step.kept[graph.edge_src]
    sent &= step.device[graph.edge_src] != step.device[graph.edge_dst]
    arriving = defaultdict[int, list[int]](list)  # op -> its edges over which it reads tensors of other devices
    for edge, op in zip(np.flatnonzero(sent).tolist(), graph.edge_dst[sent].tolist(), strict=True):
        arriving[op].append(edge)
    for device, ops in enumerate(lists):
        totals, chunk, following = dict[int, Output](), None, list[int]()  # ops that are kept as they follow each other
        for op in (op for op in ops if stage[op] >= 0):
            number, micro_batch = int(stage[op]), int(graph.micro_batches[op])
            if (number, kinds[op], micro_batch) != chunk or op in arriving:
                step.keep(following)
                following = []
            if (number, kinds[op], micro_batch) != chunk:
                chunk = number, kinds[op], micro_batch
                _begin_chunk(step, device, *chunk, gradients.get(number, _Gradients()))
                computed = stage_tables.get((number, micro_batch), ())
                if kinds[op] == "F":
                    _compute(step, device, number, computed, stage)
            for edge in arriving.get(op, ()):
                tensor = int(graph.edge_tensor[edge])
                if int(graph.edge_src[edge]) in computed:
                    continue
                if (tensor, device) not in received:
                    received[tensor, device] = _receive(step, tensor, device, micro_batch)
                step.redirect(edge, received[tensor, device])
            following.append(op)
            if op in contributed:
                step.keep(following)
                following = []
            for home, tensor in contributed.get(op, ()):
                if home not in totals:
                    totals[home], step.resident[tensor] = step.made(tensor), True
                    continue
                fields = {"inputs": [totals[home], step.made(tensor)], "micro_batch": micro_batch}
                name = f"{graph.op_names[home]} of {graph.op_names[op]}"
                totals[home] = step.add(name, device, fields | {"resident_outputs": [0]}, like=adding[home])
        step.keep(following)
    for (tensor, _), (number, _) in received.items():
        step.wait(number, step.made(tensor))
    _keep_for_weights(step, [op for ops in lists for op in ops if stage[op] >= 0], stage, kinds)


def _keep_for_weights(step: StepGraph, ops: Sequence[int], stage: np.ndarray, kinds: Sequence[str]) -> None:
    """Let devices keep all that a backward pass for inputs (I) reads of its forward pass until W ends, as torch does.

    torch runs I on a graph of autograd that it needs again for W. What is inside of a kernel of attention isn't kept.
    """
    graph, read = step.captured, defaultdict[tuple[int, int], dict[int, None]](dict)
    tensor, kind, place = saved(graph), np.array(kinds), np.zeros(graph.num_ops, np.int64)
    place[ops] = np.arange(len(ops))
    last = {(int(stage[op]), int(graph.micro_batches[op])): op for op in ops if kinds[op] == "W"}
    reader, maker = graph.edge_dst, graph.producer[tensor]
    kept = (tensor >= 0) & (kind[reader] == "I") & (kind[maker] == "F")
    kept &= (stage[maker] == stage[reader]) & (graph.micro_batches[maker] == graph.micro_batches[reader])
    for edge in sorted(np.flatnonzero(kept).tolist(), key=place[reader].__getitem__):
        op = int(reader[edge])
        read[int(stage[op]), int(graph.micro_batches[op])][int(tensor[edge])] = None
    for key, op in last.items():
        for each in read[key]:
            step.wait(int(step.number[op]), step.made(each))


def _receive(step: StepGraph, tensor: int, device: int, micro_batch: int) -> Output:
    """Add an op that receives a tensor on a device, and return what it is there; what the op reads is added later."""
    graph, op = step.captured, int(step.captured.producer[tensor])
    size, output = int(graph.output_bytes[tensor]), tensor - int(graph.output_ptr[op])
    name = f"{graph.op_names[op]} [{output}] received on {step.problem.cluster.device_names[device]}"
    memory = {"outputs": [size], "resident_outputs": [0], "param_bytes": size, "trained_bytes": 0, "state_bytes": 0}
    return step.add(name, device, {"type": RECEIVE, "micro_batch": micro_batch} | memory)


def _compute(step: StepGraph, device: int, number: int, ops: Sequence[int], stage: np.ndarray) -> None:
    """Compute captured ops of other stages on a device, and let the ops of one of its stages (N,) read the results."""
    graph, computed = step.captured, dict[int, int]()
    for op in ops:
        edges = range(graph.input_ptr[op], graph.input_ptr[op + 1])
        sources = [(int(graph.edge_src[edge]), int(graph.edge_output[edge])) for edge in edges]
        inputs = [(computed[src] if src in computed else step.copies[src, device], output) for src, output in sources]
        computed[op], _ = step.add(f"{graph.op_names[op]} in stage {number}", device, {"inputs": inputs}, like=op)
    for edge in np.flatnonzero(np.isin(graph.edge_src, ops) & (stage[graph.edge_dst] == number)).tolist():
        step.redirect(edge, (computed[int(graph.edge_src[edge])], int(graph.edge_output[edge])))


def _begin_chunk(step: StepGraph, device: int, stage: int, kind: str, micro_batch: int, gradients: _Gradients) -> None:
    """Add an op for the time that torch takes for a chunk in addition to its ops, if that was measured."""
    if fit := _measured(step.problem, device, CHUNK):
        us, split = fit.fixed_us, _measured(step.problem, device, SPLIT)
        if kind == "W" and split:
            us += gradients.tensors * split.fixed_us + gradients.bytes * split.us_per_byte
        time = {"time_us": {step.problem.cluster.devices[device].kind: us}}
        step.add(f"{stage}{kind}{micro_batch}", device, {"type": CHUNK, "micro_batch": micro_batch} | time)


def _all_reduce(step: StepGraph, stage: int, devices: Sequence[int], gradients: _Gradients) -> None:
    """Add the ops by which the replicas of a stage sum up their gradients."""
    problem, cluster, count = step.problem, step.problem.cluster, len(devices)
    links, as_they_arrive = exchange_links(cluster, devices, 2 * (count - 1))
    before = dict(zip(devices, [devices[-1], *devices], strict=False))

    def name(what: str, device: int) -> str:
        return f"gradients of stage {stage}, {what} on {problem.cluster.device_names[device]}"

    def cost(device: int, count: int, size: float) -> Record:
        fit, link = _measured(problem, device, SUM), (before[device], device)
        if count == 0 or not (fit or as_they_arrive):
            return addition(device, count, size)
        if fit:
            us = gradients.tensors * fit.fixed_us + fit.us_per_byte * size
        else:  # twice what a hop of a collective takes beside its transfer: this one, and that which brings the sum
            hop_us, sent_us = (float(each.latency_us[link] + size / each.bandwidth[link]) for each in (links, cluster))
            us = round(2 * max(hop_us - sent_us, 0.0), 6)
        return addition(device, count, size) | {"type": SUM, "time_us": {cluster.devices[device].kind: us}}

    sizes, routes = shares(gradients.bytes, count), ring(devices)
    step.all_reduce(Exchange(name, sizes, routes, {"pass": "backward"}, in_place=True, cost=cost), devices)


def _measured(problem: PlacementProblem, device: int, what: str) -> Fit | None:
    """Return the fit of `what` that was measured on devices of this kind under torchrun; None if there is none."""
    fits: dict[str, Fit] = getattr(problem.costs, "fits", {}).get(problem.cluster.devices[device].kind, {})
    return fits.get(what)
