"""The order in which `torch.distributed.pipelining` runs the chunks of a pipeline, and the step in this order.

torch runs whole chunks of a stage and a micro-batch. F is the forward pass. I computes the gradients that the stage
before waits for, and W those of weights; B does both at once. A device's list of ops becomes an order of chunks: F and
W stand where the list begins them, I where the list has computed the last gradient that is sent. The first stage has B
in place of I and W, since no stage waits for its gradients. So has a stage that recomputes blocks. A stage without
trained weights has B in place of I, or a B without ops, since torch needs a backward chunk of each stage. The orders of
all devices are parts of one order of all chunks, in which each chunk comes after those that it needs, so that no device
waits for ever.

The stages are those of `torch.distributed.pipelining` (torch 2.13), which cuts a model before or after a call of a
module: `placeto.problem.step.borders` says where that is possible.

Legend: N ops, S stages, R replicas, M micro-batches, D devices.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np

from placeto.errors import PlanError
from placeto.problem.dispatch import order_of_lists
from placeto.problem.graph.label_values import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.borders import never_cut
from placeto.problem.step.forward_pass import before_loss
from placeto.problem.step.layer_costs import waited_for
from placeto.problem.step.plan import NO_PLAN, Chunk, Plan
from placeto.problem.step.recomputation import RECOMPUTATION
from placeto.simulator.schedule import Schedule, simulate


@dataclass(frozen=True, eq=False)
class ChunkOrder:
    """A plan in whole chunks."""

    plan: Plan  # with the chunks that each device runs, in order
    stage: np.ndarray  # (N,) int64, stage of each op; -1 for parameters, sums of gradients and the optimizer
    kinds: tuple[str, ...]  # (N,) the kind of each op's chunk: F, I, W or B; "" for an op in no chunk
    schedule: Schedule  # of the plan, with ops in the order of the chunks


def order_chunks(schedule: Schedule, alike: bool = False) -> ChunkOrder:
    """Find the order of a plan's chunks, unless the plan has one, and simulate the plan in this order.

    Args:
        schedule: the schedule of a plan's placement.
        alike: whether all replicas run their chunks in the order of the first replica, as in torchtitan.

    Raises:
        PlanError: torch can't run the plan, or there is none; or the order of the plan lacks a chunk, or has one that
            the step doesn't have.
    """
    problem, plan, graph = schedule.problem, schedule.plan, schedule.problem.graph
    if plan is None:
        raise PlanError(f"{graph.name}: {never_cut(graph) or f'{NO_PLAN} torch-pipeline'}")
    if why := plan.refusal(problem, "torchtitan" if alike else "torch"):
        raise PlanError(f"{graph.name}: {why}")
    micro_batches, stage = graph.micro_batches, _stages(problem, plan)
    placement, staged = schedule.placement.copy(), stage >= 0
    placement[staged] = plan.device[stage[staged], micro_batches[staged]]  # also of ops without time beside a cut
    ops = schedule.order[schedule.order < problem.num_ops]
    base = simulate(problem, placement, order=ops)
    kind, sent = _kinds(base, stage)
    members: dict[Chunk, list[int]] = {}
    for op in base.order[base.order < problem.num_ops].tolist():
        if staged[op]:
            members.setdefault((int(stage[op]), kind[op], int(micro_batches[op])), []).append(op)
    for number, part, micro_batch in tuple(members):  # torch asks for a backward pass of each stage
        if part == "F" and not any((number, backward, micro_batch) in members for backward in "BI"):
            members[number, "B", micro_batch] = []
    if plan.chunks and (wrong := set(itertools.chain(*plan.chunks)) ^ set(members)):
        chunk = min(wrong)
        what = "has no chunk" if chunk in members else "has a chunk that the step doesn't have,"
        raise PlanError(f"{graph.name}: the order of the plan {what} {'{}{}{}'.format(*chunk)}: plan this step anew")
    lists: list[list[Chunk]] = [list(chunks) for chunks in plan.chunks] or [[] for _ in range(problem.num_devices)]
    for chunk in () if plan.chunks else _ordered(base, members, sent, stage, plan):
        lists[plan.device_of(chunk[0], chunk[2])].append(chunk)
    if alike:
        lists = _alike(lists, plan)
    ordered = replace(plan, chunks=tuple(map(tuple, lists)))
    ran = replace(_simulated(base, lists, members, sent), plan=ordered)
    return ChunkOrder(ordered, stage, tuple(kind), ran)


def _stages(problem: PlacementProblem, plan: Plan) -> np.ndarray:
    """(N,) the stage of each op: in the forward pass by its place in the program, and elsewhere by its layer."""
    graph, layers = problem.graph, plan.layers(problem)
    places = [layers.borders.border[first - 1].place for first in plan.borders]
    stage = np.where(graph.micro_batches == NO_MICRO_BATCH, -1, layers.stage(plan.borders))
    forward = before_loss(graph)
    for micro_batch in range(plan.num_micro_batches):
        program = np.flatnonzero(forward & (graph.micro_batches == micro_batch))
        stage[program] = np.searchsorted(places, np.arange(len(program)), side="right")
    return stage


def _alike(lists: list[list[Chunk]], plan: Plan) -> list[list[Chunk]]:
    """Return the chunks of each device, with those of every replica in the order of the first replica."""
    micro_batches = plan.micro_batches[0]
    first, number = plan.replicas[0], {micro_batch: place for place, micro_batch in enumerate(micro_batches[0])}
    alike = list(lists)
    for devices, of_replica in zip(plan.replicas, micro_batches, strict=True):
        for device, like in dict(zip(devices, first, strict=True)).items():
            alike[device] = [(stage, kind, of_replica[number[micro_batch]]) for stage, kind, micro_batch in lists[like]]
    return alike


def _kinds(schedule: Schedule, stage: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the kind of each op's chunk (N,), and (N,) bool, the ops that make the last gradients to be sent.

    A kind is F, I, W or B, or "" for an op in no chunk. A stage that recomputes blocks has B in place of I and W: torch
    would recompute them for each of the two. Of the gradients that the stage before waits for, the last ones
    are those on which no other of them in the same stage depends.
    """
    graph = schedule.problem.graph
    backward = np.array([part in BACKWARD_PASSES for part in graph.passes]) & (stage >= 0)
    needed, sent = waited_for(graph, stage, backward), np.zeros(graph.num_ops, bool)
    edges = np.flatnonzero(backward[graph.edge_src] & backward[graph.edge_dst])
    src, dst = graph.edge_src[edges], graph.edge_dst[edges]
    sent[src[stage[dst] < stage[src]]] = True
    sent[src[needed[dst] & (stage[dst] == stage[src])]] = False
    chunk = list(zip(stage.tolist(), graph.micro_batches.tolist(), strict=True))
    recomputing = {int(stage[op]) for op, part in enumerate(graph.passes) if part == RECOMPUTATION}
    flows = {chunk[op] for op in np.flatnonzero(needed).tolist() if chunk[op][0] not in recomputing}
    kind = [""] * len(stage)
    for op in np.flatnonzero(stage >= 0).tolist():
        kind[op] = "F" if not backward[op] else "B" if chunk[op] not in flows else "I" if needed[op] else "W"
    weights = {chunk[op] for op, part in enumerate(kind) if part == "W"}
    for op in (op for op, part in enumerate(kind) if part == "I"):
        if chunk[op] not in weights:
            kind[op] = "B"  # torch takes no I without a W
    return kind, sent


def _ordered(
    schedule: Schedule, members: dict[Chunk, list[int]], sent: np.ndarray, of_op: np.ndarray, plan: Plan
) -> list[Chunk]:
    """Return all chunks, each after those that it needs; of several that can be next, the earliest in the schedule.

    Neighbouring stages on the same devices, as where a plan turns back, count as one stage: their chunks are as early
    as those of the first of them, since nothing goes to another device between them.
    """
    start, finish = schedule.start_us, schedule.finish_us
    devices = plan.devices
    first = [0]  # (S,) the first of the neighbouring stages
    for stage in range(1, len(devices)):
        first.append(first[-1] if devices[stage] == devices[stage - 1] else stage)
    ops_of: dict[Chunk, list[int]] = {}
    for (stage, kind, micro_batch), ops in members.items():
        ops_of.setdefault((first[stage], kind.replace("B", "I"), micro_batch), []).extend(ops)
    time = dict.fromkeys(members, 0.0)
    for stage, kind, micro_batch in members:
        ops = ops_of[first[stage], kind.replace("B", "I"), micro_batch]
        gone = [op for op in ops if sent[op] and of_op[op] == first[stage]]
        if ops:
            time[stage, kind, micro_batch] = float(finish[gone].max() if gone else start[ops].min())
    graph = nx.DiGraph()
    graph.add_nodes_from(members)
    for chunk in members:
        stage, kind, m = chunk
        gradients = [(stage, "F", m), (stage + 1, "I", m), (stage + 1, "B", m)]
        needed = {"F": [(stage - 1, "F", m)], "W": [(stage, "I", m)]}.get(kind, gradients)
        graph.add_edges_from((before, chunk) for before in needed if before in members)
    return list(nx.lexicographical_topological_sort(graph, lambda chunk: (time[chunk], chunk)))


def _simulated(
    schedule: Schedule, lists: list[list[Chunk]], members: dict[Chunk, list[int]], sent: np.ndarray
) -> Schedule:
    """Simulate the placement with the ops of each device in the order of its chunks.

    Within a chunk, the ops that make what the stage before waits for come last. Sums of gradients and other ops of no
    micro-batch come behind the last chunk that they need, or at the end if they need a tensor of another device.
    """
    problem, low = schedule.problem, schedule.lowering
    ops = problem.num_ops
    place = np.full(ops, -1.0)  # of each op's chunk in the list of its device
    for chunks in lists:
        for number, chunk in enumerate(chunks):
            place[members[chunk]] = number
    started = schedule.order[schedule.order < ops]
    shared = problem.graph.micro_batches == NO_MICRO_BATCH
    into = np.flatnonzero(np.append(shared, np.zeros(len(low.placement) - ops, bool))[low.flat.out_child])
    sources = np.repeat(np.arange(len(low.placement)), np.diff(low.flat.out_ptr))[into]
    reads = defaultdict[int, list[int]](list)  # of ops of no micro-batch
    for reader, src in zip(low.flat.out_child[into].tolist(), sources.tolist(), strict=True):
        reads[reader].append(src)
    for op in started[shared[started]].tolist():
        is_local = all(src < ops and low.placement[src] == low.placement[op] for src in reads[op])
        place[op] = max((place[src] for src in reads[op]), default=-1.0) if is_local else np.inf
    order = np.lexsort((np.argsort(started), sent, shared, place))
    device = low.placement[order]
    listed = order_of_lists(problem.graph, [order[device == number] for number in range(problem.num_devices)])
    return simulate(problem, schedule.placement, order=listed)
