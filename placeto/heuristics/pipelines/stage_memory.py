"""Stages that fit into memory: where each begins and which blocks it recomputes, chosen together.

A stage holds the tensors that the backward pass reads, of as many micro-batches as there are stages from it to the end
of the pipeline, as in the order 1F1B (Narayanan et al., SOSP 2019). So the early stages recompute blocks, and get fewer
of them. Within a stage the first blocks are recomputed, since what they keep is held the longest.

Legend: B blocks, C cuts, L layers, D devices, P stages, R replicas of a stage, M micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain, pairwise, product
from typing import NamedTuple

import numpy as np

from placeto.heuristics.pipelines.block_costs import BlockCosts
from placeto.heuristics.pipelines.bounded_orders import bounded_orders
from placeto.heuristics.pipelines.plan_chunks import chunk_problem
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan, Stages
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import Schedule, simulate

_MUCH = 0.2
"""If chunks lack more of the memory, they are not simulated with devices that hold fewer of them."""


def in_flight(stage: int, stages: int, replicas: int, count: int) -> int:
    """How many of M micro-batches each replica of a stage holds at the same time in the order 1F1B."""
    return min(math.ceil(count / replicas), stages - stage)


def fitting_stages(
    problem: PlacementProblem, costs: BlockCosts, devices: Stages, room: float = 1.0, shared_out: bool = False
) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """Return the borders and the recomputed blocks for which the slowest stage is fastest; None if no stages fit.

    Args:
        problem: the problem of the step.
        costs: of its blocks.
        devices: (P, R) of each stage.
        room: the share of each device's memory that is taken.
        shared_out: whether the replicas of a stage share out the optimizer's state.
    """
    count, ends = problem.graph.num_micro_batches, [0, *costs.cuts.tolist(), len(costs.block)]
    first_device, kind = costs.kinds
    best, chosen = np.append(0.0, np.full(len(ends) - 1, np.inf)), list[tuple[np.ndarray, np.ndarray]]()
    for stage, replicas in enumerate(devices):
        of_kind = tuple(np.bincount(kind[list(replicas)], minlength=len(first_device)).tolist())
        held, most = in_flight(stage, len(devices), len(replicas), count), math.ceil(count / len(replicas))
        least = min(room * problem.cluster.memory[device] for device in replicas)
        us, again = _stages_between(costs, of_kind, held, most, least, shared_out)
        slowest = np.maximum(best[:, None], us)
        chosen.append((slowest.argmin(axis=0), again))
        best = slowest.min(axis=0)
    if np.isinf(best[-1]):
        return None
    end, borders, blocks = len(ends) - 1, list[int](), list[int]()
    for begins, again in reversed(chosen):
        begin = int(begins[end])
        borders, blocks = [ends[begin], *borders], [*costs.within(ends[begin], ends[end])[: again[begin, end]], *blocks]
        end = begin
    return tuple(borders[1:]), tuple(costs.paths[block] for block in blocks)


@lru_cache(maxsize=256)
def _stages_between(
    costs: BlockCosts, replicas: tuple[int, ...], held: int, most: int, room: float, shared_out: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the us for a micro-batch of a stage between any two cuts, and how many of its blocks it recomputes.

    Both are (C+2, C+2), by the numbers of the cuts at which the stage begins and ends; the beginning and the end of the
    model count as cuts. It recomputes as few blocks as possible, its first ones; us are infinite if it lacks memory.
    Each replica has all parameters, and all of the optimizer's state unless the replicas share it out.

    Args:
        costs: of the blocks.
        replicas: how many replicas are on devices of each kind.
        held: how many micro-batches a replica holds at the same time.
        most: how many micro-batches a replica takes.
        room: bytes of memory of a replica.
        shared_out: whether the replicas share out the optimizer's state.
    """
    ends = np.array([0, *costs.cuts.tolist(), len(costs.block)])
    crossing = np.concatenate([[0], costs.crossing, [0]])[ends]

    def between(of_layer: np.ndarray) -> np.ndarray:
        """(C+2, C+2, ...) sums over the layers of the stages."""
        sums = np.concatenate([np.zeros((1, *of_layer.shape[1:])), of_layer.cumsum(axis=0)])[ends]
        return sums[None] - sums[:, None]

    used = np.flatnonzero(replicas)
    devices = costs.kinds[0][used]
    us = between(costs.keep.us.sum(axis=0)[:, devices])
    resident = costs.keep.resident - (costs.keep.state * (1.0 - 1.0 / sum(replicas)) if shared_out else 0.0)
    left = room - between(resident) - most * (crossing[:, None] + crossing)
    need, largest, again = held * between(costs.kept), np.zeros(left.shape), np.zeros(left.shape, np.int64)
    for saved, block_us, (first, last) in zip(costs.saved, costs.us, costs.spans, strict=True):
        chosen = (need + largest > left) & (ends <= first)[:, None] & (ends > last)
        need[chosen] -= held * saved
        largest[chosen] = np.maximum(largest[chosen], saved)
        us[chosen] += block_us[devices]
        again += chosen
    together = 1.0 / (np.array(replicas)[used] / np.maximum(us, 1e-9)).sum(axis=2)
    together[(need + largest > left) | (ends[:, None] >= ends)] = np.inf
    return together, again


class Fitted(NamedTuple):
    """A plan whose chunks were simulated."""

    lacking: float  # the sum over devices of the memory that they lack, as a share of theirs
    us: float
    chunks: Schedule
    plan: Plan

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from others: the plan, its time and its memory."""
        return self.plan, self.us, *self.chunks.peak_memory.tolist()

    @property
    def penalised_us(self) -> float:
        """The penalised makespan to six digits: the sums of equal times differ in the last ones."""
        return float(f"{penalised(self.us, self.lacking):.6g}")

    @property
    def rank(self) -> tuple[bool, float]:
        """Plans that fit come first, and then the fastest."""
        return self.lacking > 0.0, self.penalised_us


def by_chunks(problem: PlacementProblem, costs: BlockCosts, plan: Plan, memory: np.ndarray) -> list[Fitted]:
    """Simulate the chunks of a plan in several orders; those that fit into `memory` (D,) and are fast come first.

    In the last orders, devices that lack memory hold fewer chunks.
    """
    chunks, placement = chunk_problem(problem, plan, costs.as_run(plan))
    found, schedules = dict[object, Fitted](), dict[bytes, Schedule]()

    def ran_in(order: np.ndarray) -> Schedule:
        """Simulate an order, if it is new."""
        if (key := order.tobytes()) not in schedules:
            schedules[key] = simulate(chunks, placement, order=order)
        return schedules[key]

    def run(orders: Iterator[np.ndarray]) -> list[Schedule]:
        ran = [*map(ran_in, orders)]
        for each in ran:
            lacking = float(np.maximum(0.0, each.peak_memory / memory - 1.0).sum())
            fitted = Fitted(lacking, each.makespan_us, each, plan)
            found.setdefault(fitted.key, fitted)
        return ran

    for defer, falling in product((True, False), (False, True)):
        run(bounded_orders(chunks, placement, defer, falling))
    stages = np.bincount(list(chain(*plan.devices)), minlength=len(memory))  # of each device
    pipelined = len(plan.devices) // stages.max()  # devices of a micro-batch
    held = stages * min(plan.num_micro_batches, pipelined + 1)
    lacking = [each.lacking for each in found.values()]
    lacks = (stages > 0) & (min(lacking) < _MUCH) & (max(lacking) > 0.0)
    while (lacks := lacks & (held > 1)).any():
        ran = run(bounded_orders(chunks, placement, held=held))
        lacks = min((each.peak_memory > memory for each in ran), key=np.sum)
        held = held - lacks
    return sorted(found.values(), key=lambda each: each.rank)


def least_chunks_us(problem: PlacementProblem, costs: BlockCosts, plan: Plan) -> float:
    """Return microseconds that the chunks of a plan need at least, in any order and with any memory.

    A device runs all of its chunks after the forward passes of those stages for which its first stage waits. Then the
    backward passes of stages that wait for its own run.
    """
    begins, joined, chosen = (0, *plan.borders), costs.joined(plan), np.isin(costs.paths, plan.recomputed)
    again = np.isin(costs.block, np.flatnonzero(chosen))
    us = np.where(again[None, :, None], costs.again.busy_us, costs.keep.busy_us)
    forward, inputs, weights = np.add.reduceat(us, begins, axis=1)  # (P, D) each
    inputs, weights = np.where(np.array(joined)[:, None], (inputs + weights, 0.0 * weights), (inputs, weights))
    overhead, stages = problem.cluster.overhead_us, len(begins)
    stage = np.repeat(np.arange(stages), np.diff((*begins, plan.num_layers)))
    before, after = np.zeros(stages), np.zeros(stages)  # us of the stages for which each waits, and that wait for it
    for (makers, readers), waiting, times, back in zip(
        costs.waits, (before, after), (forward, inputs), (0, 1), strict=True
    ):
        pairs = {
            pair[::-1] if back else pair for pair in zip(stage[makers].tolist(), stage[readers].tolist(), strict=True)
        }
        for first, then in sorted(pair for pair in pairs if pair[0] != pair[1]):
            fastest = float((times - overhead)[first, list(plan.devices[first])].min())
            waiting[then] = max(waiting[then], waiting[first] + fastest)
    least = 0.0
    for device in plan.used:
        own = [number for number, devices in enumerate(plan.devices) if device in devices]
        counts = np.array([len(plan.micro_batches[number][plan.devices[number].index(device)]) for number in own])
        both, last = counts @ (forward + inputs)[own, device], counts @ weights[own, device]
        first, behind = before[own].min(), after[own].min()
        least = max(least, first + both + last, first + both - overhead[device] + behind)
    return float(least)


def fitted_by_chunks(problem: PlacementProblem, costs: BlockCosts, plan: Plan, memory: np.ndarray) -> Fitted:
    """Let a plan recompute further blocks until its chunks fit into `memory` (D,), if they can."""
    while (fitted := by_chunks(problem, costs, plan, memory)[0]).lacking > 0.0:
        more = with_more_blocks(costs, plan, fitted.chunks.peak_memory - memory)
        if more == plan:
            break
        plan = more
    return fitted


def improved_by_chunks(
    problem: PlacementProblem, costs: BlockCosts, plan: Plan, memory: np.ndarray, keep: Callable[[Plan], bool]
) -> Fitted:
    """Move borders by one cut, and recompute one block more or less, as long as the penalised makespan falls.

    Near a plan that fits, plans are left out that can't be faster. Returns the first of all plans on the way by their
    `Fitted.rank`.

    Args:
        problem: the problem of the step.
        costs: of its blocks.
        plan: a plan whose stages begin at cuts.
        memory: (D,) bytes.
        keep: whether a changed plan counts.
    """
    found, tried, best_us = by_chunks(problem, costs, plan, memory), {plan}, math.inf
    while (best := min(found, key=lambda each: each.penalised_us)).penalised_us < best_us:
        best_us = best.penalised_us
        near = [each for each in costs.near(best.plan) if each not in tried and keep(each)]
        tried |= {*near}
        enough = math.inf if best.lacking > 0.0 else best_us
        near = [each for each in near if least_chunks_us(problem, costs, each) < enough]
        found += [fitted for each in near for fitted in by_chunks(problem, costs, each, memory)]
    return min(found, key=lambda each: each.rank)


def with_more_blocks(costs: BlockCosts, plan: Plan, lacking: np.ndarray) -> Plan:
    """Return the plan in which devices that lack bytes (D,) recompute about as many further blocks as they need.

    It is the same plan if a device has no further block.
    """
    chosen, stages = set(plan.recomputed), len(plan.devices)
    for device in np.flatnonzero(lacking > 0).tolist():
        bytes_, before = int(lacking[device]), len(chosen)
        for stage, ends in enumerate(pairwise((0, *plan.borders, plan.num_layers))):
            if device in plan.devices[stage]:
                held = in_flight(stage, stages, len(plan.devices[stage]), plan.num_micro_batches)
                for block in costs.within(*ends):
                    if bytes_ > 0 and costs.paths[block] not in chosen:
                        chosen.add(costs.paths[block])
                        bytes_ -= held * int(costs.saved[block])
        if len(chosen) == before:
            return plan
    return replace(plan, recomputed=tuple(path for path in costs.paths if path in chosen))
