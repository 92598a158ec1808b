"""Stages that fit into memory: where each begins and which blocks it recomputes, chosen together.

A stage holds the tensors that the backward pass reads, of as many micro-batches as there are stages from it to the end
of the pipeline, as in the order 1F1B (Narayanan et al., SOSP 2019). So the early stages recompute blocks, and get fewer
of them. Within a stage the first blocks are recomputed, since what they keep is held the longest.

Legend: B blocks, C cuts, L layers, D devices, P stages, R replicas of a stage, M micro-batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise, product
from typing import NamedTuple

import numpy as np

from placeto.heuristics.bounded_orders import bounded_orders
from placeto.heuristics.plan_chunks import chunk_problem
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.forward_pass import before_loss, in_first
from placeto.problem.step.layer_costs import FORWARD, INPUTS, WEIGHTS, LayerCosts, Part, layer_costs
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import Plan, Stages
from placeto.problem.step.recomputation import block_of, recomputable, recomputed
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import Schedule, simulate

_MOST_CUTS = 64
"""Upper limit of the layers with which a stage can begin: the time of the program grows with their square."""
_MUCH = 0.2
"""If chunks lack more of the memory, they are not simulated with devices that hold fewer of them."""


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """What it costs to keep the activations of each block, and what it costs to recompute them."""

    paths: tuple[str, ...]  # (B,) the blocks, in program order
    block: np.ndarray  # (L,) int64, the block of each layer; -1 = none
    spans: np.ndarray  # (B, 2) int64, the first and the last layer with ops of each block; neighbours may share a layer
    cuts: np.ndarray  # (C,) int64, the layers with which a stage can begin
    crossing: np.ndarray  # (L-1,) int64, bytes that cross each border forward and backward, of a micro-batch
    keep: LayerCosts  # if no block is recomputed
    again: LayerCosts  # if all are

    @cached_property
    def kept(self) -> np.ndarray:
        """(L,) int64, bytes that each layer keeps for the backward pass in each micro-batch, if none is recomputed."""
        return _kept(self.keep)

    @cached_property
    def saved(self) -> np.ndarray:
        """(B,) int64, bytes that recomputing each block saves in each micro-batch."""
        return self._of_blocks(self.kept - _kept(self.again)).astype(np.int64)

    @cached_property
    def us(self) -> np.ndarray:
        """(B, D) microseconds that recomputing each block takes in each micro-batch."""
        more = (self.again.us - self.keep.us).sum(axis=0)
        return np.stack([self._of_blocks(column) for column in more.T], axis=1)

    def of(self, paths: Sequence[str]) -> LayerCosts:
        """The costs of layers if these blocks are recomputed."""
        chosen = np.isin(self.block, [self.paths.index(path) for path in paths])
        busy, launching = (
            np.where(chosen[None, :, None], again, keep)
            for again, keep in (
                (self.again.busy_us, self.keep.busy_us),
                (self.again.launching_us, self.keep.launching_us),
            )
        )
        made = {key: size for key, size in self.keep.made.items() if not chosen[key[0].layer]}
        made |= {key: size for key, size in self.again.made.items() if chosen[key[0].layer]}
        return replace(self.keep, busy_us=busy, launching_us=launching, made=made)

    def as_run(self, plan: Plan) -> LayerCosts:
        """The costs of layers as tools run a plan: gradients of weights of stages that are `joined` don't wait."""
        costs, sizes = self.of(plan.recomputed), np.diff((0, *plan.borders, plan.num_layers))
        joined = np.repeat(self.joined(plan), sizes)
        times, made = (costs.busy_us.copy(), costs.launching_us.copy()), Counter[tuple[Part, frozenset[Part]]]()
        for us in times:
            us[INPUTS, joined] += us[WEIGHTS, joined]
            us[WEIGHTS, joined] = 0.0
        for (maker, readers), size in costs.made.items():
            if maker.kind == FORWARD:
                readers = frozenset(
                    Part(INPUTS, reader.layer) if reader.kind == WEIGHTS and joined[reader.layer] else reader
                    for reader in readers
                )
            made[maker, readers] += size
        return replace(costs, busy_us=times[0], launching_us=times[1], made=dict(made))

    def joined(self, plan: Plan) -> list[bool]:
        """(P,) whether a tool computes gradients of weights with those of inputs: in the first stage, and where a stage
        recomputes blocks; see `placeto.simulator.tool_steps.chunk_order`.
        """
        return [
            first == 0 or any(self.paths[block] in plan.recomputed for block in self.within(first, end))
            for first, end in pairwise((0, *plan.borders, plan.num_layers))
        ]

    def within(self, first: int, end: int) -> list[int]:
        """The blocks that lie between two cuts as a whole: no others can be recomputed."""
        first_layer, last_layer = self.spans.T
        return np.flatnonzero((first_layer >= first) & (last_layer < end)).tolist()

    def in_stages(self, plan: Plan) -> Plan | None:
        """The plan with each border moved to the nearest cut; None if two would be at the same cut."""
        if not len(self.cuts):
            return plan if not plan.borders else None
        near = [int(self.cuts[np.abs(self.cuts - border).argmin()]) for border in plan.borders]
        return plan.recut(near) if len({*near}) == len(near) else None

    def near(self, plan: Plan) -> Iterator[Plan]:
        """Yield plans with one block more or less recomputed in a stage, or with a border at the next cut."""
        cuts, ends = self.cuts.tolist(), (0, *plan.borders, plan.num_layers)
        again = [sum(self.paths[block] in plan.recomputed for block in self.within(*stage)) for stage in pairwise(ends)]
        for stage, count in enumerate(again):
            for changed in (count - 1, count + 1):
                if 0 <= changed <= len(self.within(*ends[stage : stage + 2])):
                    yield self.recomputing(plan, (*again[:stage], changed, *again[stage + 1 :]))
        for border, place in enumerate(plan.borders):
            for cut in (cuts.index(place) - 1, cuts.index(place) + 1):
                if 0 <= cut < len(cuts) and ends[border] < cuts[cut] < ends[border + 2]:
                    borders = (*plan.borders[:border], cuts[cut], *plan.borders[border + 1 :])
                    yield self.recomputing(plan.recut(borders), again)

    def recomputing(self, plan: Plan, counts: Sequence[int]) -> Plan:
        """The plan in which each stage recomputes its first blocks, `counts` (P,) of them."""
        stages = zip(pairwise((0, *plan.borders, plan.num_layers)), counts, strict=True)
        blocks = [block for ends, count in stages for block in self.within(*ends)[:count]]
        return replace(plan, recomputed=tuple(self.paths[block] for block in blocks))

    def _of_blocks(self, of_layer: np.ndarray) -> np.ndarray:
        inside = self.block >= 0
        return np.bincount(self.block[inside], of_layer[inside], len(self.paths))


@lru_cache(maxsize=16)
def block_costs(problem: PlacementProblem) -> BlockCosts | None:
    """Return the costs of a step's blocks; None if it has none that can be recomputed; cached."""
    graph = problem.graph
    if not (paths := recomputable(graph)):
        return None
    cut, again = layers(problem, False), replace(problem, graph=recomputed(graph, paths))
    block, program = np.full(len(cut), -1), before_loss(graph) & in_first(graph) & (problem.busy_us.max(axis=1) > 0.0)
    number, of_op = cut.number[program], block_of(graph, paths)[program]
    if set(range(len(paths))) - {*of_op.tolist()}:  # a block takes no time
        return None
    spans, cuts = np.zeros((len(paths), 2), np.int64), np.arange(1, len(cut))
    for place in range(len(paths)):
        own = number[of_op == place]
        spans[place] = own.min(), own.max()
        block[own.min() : own.max() + 1] = place
    if len(cuts) > _MOST_CUTS:  # those that divide the work most evenly
        done = cut.work_us.cumsum()[:-1]
        cuts = cuts[np.unique(np.searchsorted(done, np.linspace(done[0], done[-1], _MOST_CUTS)))]
    keep, all_again = (layer_costs(each, False, saving=True) for each in (problem, again))
    return BlockCosts(paths, block, spans, cuts, cut.crossing + _sent_back(keep), keep, all_again)


def _kept(costs: LayerCosts) -> np.ndarray:
    """(L,) int64, bytes that the forward pass of each layer makes for a backward pass."""
    kept = np.zeros(costs.busy_us.shape[1], np.int64)
    for (maker, readers), size in costs.made.items():
        if maker.kind == FORWARD and any(reader.kind in (INPUTS, WEIGHTS) for reader in readers):
            kept[maker.layer] += size
    return kept


def _sent_back(costs: LayerCosts) -> np.ndarray:
    """(L-1,) int64, bytes of gradients that cross each border."""
    sent = np.zeros(costs.busy_us.shape[1], np.int64)
    for (maker, readers), size in costs.made.items():
        if maker.kind == INPUTS:
            sent[min(reader.layer for reader in readers) : maker.layer] += size
    return sent[:-1]


def in_flight(stage: int, stages: int, replicas: int, count: int) -> int:
    """How many of M micro-batches each replica of a stage holds at the same time in the order 1F1B."""
    return min(math.ceil(count / replicas), stages - stage)


def fitting_stages(
    problem: PlacementProblem, costs: BlockCosts, devices: Stages, room: float = 1.0
) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """Return the borders and the recomputed blocks for which the slowest stage is fastest; None if no stages fit.

    Args:
        problem: the problem of the step.
        costs: of its blocks.
        devices: (P, R) of each stage.
        room: the share of each device's memory that is taken.
    """
    return _Program(problem, costs, devices, room).stages()


class _Program:
    """A dynamic program over stages and cuts; each replica of a stage has all of its parameters."""

    def __init__(self, problem: PlacementProblem, costs: BlockCosts, devices: Stages, room: float) -> None:
        self.costs, self.devices, self.count = costs, devices, problem.graph.num_micro_batches
        self.ends = [0, *costs.cuts.tolist(), len(costs.block)]
        self.room = room * problem.cluster.memory
        self.busy = self._sums(costs.keep.us.sum(axis=0))
        self.kept, self.resident = self._sums(costs.kept), self._sums(costs.keep.resident)
        self.crossing = np.concatenate([[0], costs.crossing, [0]])

    @staticmethod
    def _sums(of_layer: np.ndarray) -> np.ndarray:
        """The sums of the first layers, from none to all of them."""
        return np.concatenate([np.zeros((1, *of_layer.shape[1:])), of_layer.cumsum(axis=0)])

    def stages(self) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
        """Return borders and recomputed blocks."""
        last, stages = len(self.ends) - 1, len(self.devices)
        best: dict[int, tuple[float, tuple[int, ...], tuple[int, ...]]] = {0: (0.0, (), ())}
        for stage in range(stages):
            found: dict[int, tuple[float, tuple[int, ...], tuple[int, ...]]] = {}
            for begin, (slowest, borders, blocks) in best.items():
                for end in range(begin + 1, last + 1) if stage < stages - 1 else (last,):
                    limit = found[end][0] if end in found else math.inf
                    if begin >= end or slowest >= limit:
                        continue
                    if (made := self._stage(stage, self.ends[begin], self.ends[end], limit)) is not None:
                        found[end] = max(slowest, made[0]), (*borders, self.ends[begin]), (*blocks, *made[1])
            best = found
        if last not in best:
            return None
        _, borders, blocks = best[last]
        return borders[1:], tuple(self.costs.paths[block] for block in blocks)

    def _stage(self, stage: int, first: int, end: int, limit: float) -> tuple[float, list[int]] | None:
        """Return a stage's microseconds for a micro-batch, and the blocks it recomputes.

        None if it lacks memory, or takes at least `limit` microseconds.
        """
        replicas, costs = self.devices[stage], self.costs
        us, largest = (self.busy[end] - self.busy[first])[list(replicas)], 0
        if _together(us) >= limit:  # without recomputation already
            return None
        held = in_flight(stage, len(self.devices), len(replicas), self.count)
        buffers = math.ceil(self.count / len(replicas)) * (self.crossing[first] + self.crossing[end])
        room = min(self.room[device] for device in replicas) - (self.resident[end] - self.resident[first]) - buffers
        need, chosen = held * (self.kept[end] - self.kept[first]), list[int]()
        for block in costs.within(first, end):
            if need + largest <= room:
                break
            chosen.append(block)
            need -= held * costs.saved[block]
            largest = max(largest, int(costs.saved[block]))
            us = us + costs.us[block][list(replicas)]
        together = _together(us)
        return None if need + largest > room or together >= limit else (together, chosen)


def _together(us: np.ndarray) -> float:
    """Return the microseconds of a micro-batch on replicas that take `us` (R,) for one each."""
    return float(1.0 / (1.0 / np.maximum(us, 1e-9)).sum())


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
    found = dict[object, Fitted]()

    def run(orders: Iterator[np.ndarray]) -> list[Schedule]:
        ran = [simulate(chunks, placement, order=order) for order in orders]
        for each in ran:
            lacking = float(np.maximum(0.0, each.peak_memory / memory - 1.0).sum())
            fitted = Fitted(lacking, each.makespan_us, each, plan)
            found.setdefault(fitted.key, fitted)
        return ran

    for defer, falling in product((True, False), (False, True)):
        run(bounded_orders(chunks, placement, defer, falling))
    stages = np.bincount(list(chain(*plan.devices)), minlength=len(memory))  # of each device
    held = stages * min(plan.num_micro_batches, len(plan.devices) + 1)
    lacking = [each.lacking for each in found.values()]
    lacks = (stages > 0) & (min(lacking) < _MUCH) & (max(lacking) > 0.0)
    while (lacks := lacks & (held > 1)).any():
        ran = run(bounded_orders(chunks, placement, held=held))
        lacks = min((each.peak_memory > memory for each in ran), key=np.sum)
        held = held - lacks
    return sorted(found.values(), key=lambda each: each.rank)


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

    Returns the first of all plans on the way by their `Fitted.rank`.

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
