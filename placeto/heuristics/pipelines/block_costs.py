"""What it costs to keep the activations of each block of a model, and what it costs to recompute them.

Legend: B blocks, C cuts, L layers, D devices, P stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from placeto.problem.problem import PlacementProblem
from placeto.problem.step.forward_pass import before_loss, in_first
from placeto.problem.step.layer_costs import FORWARD, INPUTS, WEIGHTS, LayerCosts, Part, layer_costs
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import Plan
from placeto.problem.step.recomputation import block_of, recomputable, recomputed

_MOST_CUTS = 64
"""Upper limit of the layers with which a stage can begin: the time of the program grows with their square."""


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

    @cached_property
    def kinds(self) -> tuple[np.ndarray, np.ndarray]:
        """(K,) int64, a device of each kind, and (D,) int64, the kind of each device: those of a kind take as long."""
        us = np.concatenate([self.keep.us.sum(axis=0), self.us])
        _, first, kind = np.unique(us, axis=1, return_index=True, return_inverse=True)
        return first, kind.ravel()

    @cached_property
    def waits(self) -> tuple[np.ndarray, np.ndarray]:
        """Two arrays (2, ...) int64: makers and readers, layers whose forward passes, and whose backward passes for
        inputs, wait for those of other layers."""
        pairs = {kind: set[tuple[int, int]]() for kind in (FORWARD, INPUTS)}
        for maker, readers in self.keep.made:
            for reader in readers:
                if maker.kind == reader.kind and maker.kind in pairs:
                    pairs[maker.kind].add((maker.layer, reader.layer))
        forward, inputs = (np.array(sorted(each), np.int64).reshape(-1, 2).T for each in pairs.values())
        return forward, inputs

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
