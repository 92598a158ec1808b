"""A plan: how a training step in micro-batches is divided between devices, as people decide about it.

A plan cuts the layers of a model into stages, gives each stage one or more devices, its replicas, and says which
micro-batches each replica takes. A plan with one stage is data parallelism, and one with one replica of each stage is a
pipeline. It may also say in which order each device runs the chunks of the step, and what the replicas of a stage
shard.

Legend: N ops, L layers, P stages, R replicas of a stage, M micro-batches, D devices.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from placeto.errors import PlanError
from placeto.problem.cluster import Cluster
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.homes import homes_of
from placeto.problem.step.layers import Layers, layers
from placeto.problem.step.recomputation import RECOMPUTATION, block_of, recomputed

Stages = tuple[tuple[int, ...], ...]
"""(P, R) the devices of each stage; stages may have different numbers of them."""
Chunk = tuple[int, str, int]
"""The stage, kind and micro-batch of a chunk. F is the forward pass, I the backward pass for inputs, W that for
weights, and B the whole backward pass."""
CHUNKS = "F", "I", "W", "B"
SHARDED = range(4)
"""Stages of ZeRO (Rajbhandari et al., SC 2020, arXiv 1910.02054): 0 shards nothing, 1 the optimizer's state, 2 also
gradients, 3 also weights."""


NO_PLAN = "the placement has no plan: it is a free placement of ops, or its file is older: place with --placer"
"""Why a free placement can't be run as a pipeline; the name of a placer follows."""
NO_BLOCKS = (
    "it has no list of layers in which half of its forward pass is spent: only models of repeated layers, such as "
    "layers.0, layers.1, ..., can be divided by numbers of layers"
)
"""Why a tool that divides a model by numbers of layers can't run it."""
TOOLS = {"torch": "torch", "torchtitan": "torchtitan", "megatron": "Megatron-LM"}
"""Names of the tools that train pipelines."""
Tool = Literal["torch", "torchtitan", "megatron"]


@dataclass(frozen=True)
class Plan:
    """P stages of contiguous layers, each on some devices. The plan is interleaved if stages share devices.

    Raises:
        PlanError: the fields contradict each other.
    """

    devices: Stages  # (P, R) number of each replica's device, by stage
    borders: tuple[int, ...]  # (P-1,) first layer of each stage but the first
    micro_batches: tuple[tuple[tuple[int, ...], ...], ...]  # (P, R, ...) those that each replica takes, ascending
    num_layers: int  # L
    whole: bool = False  # whether the layers keep modules whole that are called more than once
    chunks: tuple[tuple[Chunk, ...], ...] = ()  # (D,) the order of each device; () = a static order of ops decides
    sharding: tuple[int, ...] = ()  # (P,) one of `SHARDED` for each stage; () = nothing is sharded
    recomputed: tuple[str, ...] = ()  # paths of the modules whose activations are computed again, in program order
    width: int = 1  # number of boards of the tensor-parallel group that each device of the plan is

    def __post_init__(self) -> None:
        stages = len(self.devices)
        if not stages or len(self.borders) != stages - 1 or len(self.micro_batches) != stages:
            raise PlanError(
                f"a plan of {stages} stages needs {max(stages - 1, 0)} borders and {stages} lists of micro-batches, "
                f"not {len(self.borders)} and {len(self.micro_batches)}"
            )
        if any(first >= end for first, end in itertools.pairwise((0, *self.borders, self.num_layers))):
            raise PlanError(f"borders {self.borders} leave a stage of a plan of {self.num_layers} layers without layer")
        count = self.num_micro_batches
        if not count:
            raise PlanError("stage 0 needs a replica that takes a micro-batch")
        for stage, (devices, taken) in enumerate(zip(self.devices, self.micro_batches, strict=True)):
            if len(set(devices)) != len(devices) or len(taken) != len(devices):
                raise PlanError(f"stage {stage} needs different devices, and a list of micro-batches for each of them")
            if sorted(itertools.chain(*taken)) != list(range(count)):
                raise PlanError(f"the replicas of stage {stage} must take each of the {count} micro-batches once")
        if self.sharding and (len(self.sharding) != stages or set(self.sharding) - set(SHARDED)):
            raise PlanError(f"sharding needs one of 0, 1, 2, 3 for each of {stages} stages, not {self.sharding}")
        if stages > 1 and max(self.sharding, default=0) > 1:
            raise PlanError(f"the stages of a pipeline have sharding 0 or 1, not {self.sharding}")
        if len(set(self.recomputed)) < len(self.recomputed):
            raise PlanError(f"a plan recomputes each module once, not as in {', '.join(self.recomputed)}")
        if self.width < 1:
            raise PlanError(f"the groups of a plan have at least one board, not {self.width}")
        ran = Counter((device, *chunk) for device, own in enumerate(self.chunks) for chunk in own)
        for device, stage, kind, micro_batch in ran:
            known = stage in range(stages) and kind in CHUNKS and micro_batch in range(count)
            if not known or self.device_of(stage, micro_batch) != device or ran[device, stage, kind, micro_batch] > 1:
                raise PlanError(f"device {device} can't run chunk {stage}{kind}{micro_batch} of the plan, or not again")

    @cached_property
    def num_micro_batches(self) -> int:
        """M."""
        return sum(map(len, self.micro_batches[0]))

    @cached_property
    def device(self) -> np.ndarray:
        """(P, M) int64, where each stage runs each micro-batch."""
        found = np.empty((len(self.devices), self.num_micro_batches), np.int64)
        for stage, (devices, taken) in enumerate(zip(self.devices, self.micro_batches, strict=True)):
            for device, micro_batches in zip(devices, taken, strict=True):
                found[stage, list(micro_batches)] = device
        return found

    def device_of(self, stage: int, micro_batch: int) -> int:
        """The device on which a stage runs a micro-batch."""
        return int(self.device[stage, micro_batch])

    @property
    def used(self) -> frozenset[int]:
        """The devices that have a stage."""
        return frozenset(itertools.chain(*self.devices))

    @property
    def interleaved(self) -> bool:
        """Whether a device has several stages."""
        return len(self.used) < sum(map(len, self.devices))

    @property
    def even(self) -> bool:
        """Whether all stages have equally many replicas, which take turns and get equally many micro-batches."""
        replicas, count = len(self.devices[0]), self.num_micro_batches
        turns = tuple(tuple(range(replica, count, replicas)) for replica in range(replicas))
        return count % replicas == 0 and all(taken == turns for taken in self.micro_batches)

    @cached_property
    def replicas(self) -> Stages:
        """(R, P) the devices of each replica, by stage; only even plans have replicas of all stages."""
        return tuple(zip(*self.devices, strict=True))

    @property
    def in_turns(self) -> bool:
        """Whether in each replica the stages go over its devices in the same order again and again."""
        size = len(set(self.replicas[0]))
        return len(self.devices) % size == 0 and all(row == row[:size] * (len(row) // size) for row in self.replicas)

    @property
    def goes_back(self) -> bool:
        """Whether in each replica the stages go over its devices and back, with two stages where they turn."""
        return all(row == row[::-1] and len(row) == 2 * len(set(row)) for row in self.replicas)

    def moved(self, border: int, step: int) -> Plan | None:
        """The plan with a border moved by `step` layers; None if a stage would then have no layer."""
        borders = list(self.borders)
        borders[border] += step
        if any(first >= end for first, end in itertools.pairwise([0, *borders, self.num_layers])):
            return None
        return self.recut(borders)

    def joined(self) -> Plan:
        """The plan without cuts between neighbouring stages on the same devices, as where it turns back."""
        borders = [*self.borders, self.num_layers]
        for stage in range(len(self.devices) - 1, 0, -1):
            if self.devices[stage] == self.devices[stage - 1]:
                borders[stage - 1] = borders[stage]  # which leaves the later one of the two no layer
        return self.recut(borders[:-1])

    def recut(self, borders: Sequence[int]) -> Plan:
        """The plan with other borders (P-1,), ascending; a stage that is left without layers is left out."""
        kept, firsts = list[int](), list[int]()
        ends = (*borders, self.num_layers)
        for stage, (first, end) in enumerate(zip((0, *borders), ends, strict=True)):
            if first < end:
                kept.append(stage)
                firsts.append(first)
        return replace(
            self,
            devices=tuple(self.devices[stage] for stage in kept),
            borders=tuple(firsts[1:]),
            micro_batches=tuple(self.micro_batches[stage] for stage in kept),
            sharding=tuple(self.sharding[stage] for stage in kept) if self.sharding else (),
            chunks=self.chunks if tuple(borders) == self.borders else (),
        )

    def in_blocks(self, problem: PlacementProblem) -> Plan:
        """The plan whose stages begin with blocks and that is most like this one; a stage without blocks is left out.

        A model without blocks has this plan itself.
        """
        blocks = self.layers(problem).blocks
        return self.recut(blocks.rounded(self.borders)) if blocks.modules else self

    def sharing_out(self) -> Plan:
        """The plan in which the replicas of each stage share out the optimizer's state (stage 1 of ZeRO)."""
        sharding = tuple(int(len(devices) > 1) for devices in self.devices)
        return replace(self, sharding=sharding if any(sharding) else ())

    def step(self, problem: PlacementProblem) -> PlacementProblem:
        """The problem of the step with the modules that the plan recomputes.

        Raises:
            PlanError: the step lacks one of these modules.
        """
        graph = recomputed(problem.graph, self.recomputed)
        return problem if graph is problem.graph else replace(problem, graph=graph)

    def layers(self, problem: PlacementProblem) -> Layers:
        """The layers of the step that the plan cuts.

        Raises:
            PlanError: the plan is for a step of another number of layers or micro-batches.
        """
        found = layers(problem, self.whole)
        count = problem.graph.num_micro_batches
        if (len(found), count) != (self.num_layers, self.num_micro_batches):
            raise PlanError(
                f"the plan is for {self.num_layers} layers in {self.num_micro_batches} micro-batches, "
                f"{problem.graph.name} has {len(found)} layers in {count}: plan this step anew"
            )
        return found

    def refusal(self, problem: PlacementProblem, tool: Tool = "torch") -> str:
        """Return the reason why a tool that trains pipelines can't run the plan; "" if it can.

        torchtitan and Megatron-LM run whole blocks, so the stages of their plans begin with blocks: see `in_blocks`.
        """
        name, by = TOOLS[tool], f"plan with --runnable-by {tool}"
        if self.width > 1 and tool == "torch":
            return self.no_groups("the exported program of torch")
        own = [name for names in problem.graph.own_gradients for name in names]
        if own and tool == "torch" and len(self.devices) > 1:
            return (
                f"{own[0]} makes gradients of its own, and torch would train the stages without them: write it in ops "
                "of torch, such as x + (f(x) - x).detach() for f(x) with the gradient of x, or run replicas, not stages"
            )
        if not self.even:
            return (
                f"its replicas differ in number or in their micro-batches, and {name} needs equally many of each "
                f"stage: {by}"
            )
        if tool != "torch" and not self.layers(problem).blocks.modules:
            return NO_BLOCKS
        again = "in the same order again and again"
        if tool == "megatron":
            size, each = len(set(self.replicas[0])), self.num_micro_batches // len(self.replicas)
            if not self.in_turns:
                return f"its stages don't go over the devices {again}, as those of {name} do: {by}"
            if len(self.devices) > size and each % size:
                return (
                    f"with several stages a device {name} needs a number of micro-batches that the {size} devices of a "
                    f"pipeline divide, not {each}: choose another number of --micro-batches"
                )
            return ""
        if tool == "torchtitan" and any(self.sharding) and len(self.devices) > 1:
            return f"its replicas share out the state of the optimizer, and {name} doesn't without the weights: {by}"
        if tool == "torchtitan" and not (self.in_turns or self.goes_back):
            return f"its stages don't go over the devices {again}, or once back, as those of {name} do: {by}"
        return self.layers(problem).borders.refusal(self.borders) or self._cut_block(problem)

    def no_groups(self, tool: str) -> str:
        """Return the reason why a tool without tensor-parallel groups can't run the plan."""
        groups = f"its devices are tensor-parallel groups of {self.width} boards, which {tool} doesn't have"
        if len(self.devices) == 1:
            return f"{groups}: run it by `placeto run --plan`"
        return f"{groups}: export it for torchtitan or megatron"

    def _cut_block(self, problem: PlacementProblem) -> str:
        """Return a sentence on a recomputed block of which several stages have a part; "" if there is none."""
        borders = self.layers(problem).borders
        places = [borders.border[first - 1].place for first in self.borders]
        stage = np.searchsorted(places, np.arange(len(borders.program)), side="right")
        of_op = block_of(problem.graph, self.recomputed)[borders.program]
        for number, path in enumerate(self.recomputed):
            if len(np.unique(stage[of_op == number])) > 1:
                return f"it recomputes {path} as a whole, and cuts it into two stages: plan this step anew"
        graph, stage = problem.graph, self.layers(problem).stage(self.borders)
        again = np.array([part == RECOMPUTATION for part in graph.passes])
        both = again[graph.edge_src] & again[graph.edge_dst]
        if (stage[graph.edge_src[both]] != stage[graph.edge_dst[both]]).any():
            return "a stage begins within a module that is recomputed, and torch recomputes it as a whole: move borders"
        return ""

    def placement(self, problem: PlacementProblem) -> np.ndarray:
        """(N,) device of each op.

        Parameters are spread over the replicas of their stage by their bytes, like other ops that belong to no
        micro-batch. An op that is made from a parameter, such as its copy in 16 bits, is on the parameter's device.

        Raises:
            PlanError: the plan is for another step.
        """
        stage = self.layers(problem).stage(self.borders)
        placement = self.device[stage, np.maximum(problem.graph.micro_batches, 0)]
        homes = homes_of(problem.graph)
        home, load = placement[homes.first], np.zeros(problem.num_devices)
        for number in np.flatnonzero(homes.weight).tolist():
            replicas = list(self.devices[stage[homes.first[number]]])
            home[number] = device = replicas[int(load[replicas].argmin())]
            load[device] += homes.weight[number]
        with_home = homes.number >= 0
        placement[with_home] = home[homes.number[with_home]]
        return placement

    def shape(self, cluster: Cluster) -> str:
        """Return stages, replicas and groups, such as "2 stages x 4", "stages of 6, 2" or "8 replicas, groups of 2".

        If the plan leaves devices idle, the shape also says which ones it uses; for replicas, only if the cluster has
        several kinds of devices.
        """
        return self._stages(cluster) + (f", groups of {self.width}" if self.width > 1 else "")

    def _stages(self, cluster: Cluster) -> str:
        sizes = [len(devices) for devices in self.devices]
        some = "" if len(self.used) == len(cluster.devices) else f" {on_devices(self.used, cluster)}"
        if len(sizes) == 1:
            return f"{sizes[0]} replicas{some if len({device.kind for device in cluster.devices}) > 1 else ''}"
        equal = len(set(sizes)) == 1
        shape = f"{len(sizes)} stages x {sizes[0]}" if equal else f"stages of {', '.join(map(str, sizes))}"
        if self.interleaved:
            turns = [stage for stage, devices in enumerate(self.devices) if devices == self.devices[0]]
            again = len(turns) > 1 and turns[1] == len(sizes) // len(turns)
            shape += ", again" if again else ", and back"
        return shape + some + (", optimizer sharded" if any(self.sharding) else "")

    def line(self, cluster: Cluster) -> str:
        """Return the plan in one line, such as "2 stages x 4, 16 micro-batches, 5 blocks recomputed"."""
        parts = [self.shape(cluster), f"{self.num_micro_batches} micro-batches"]
        if self.sharding and len(self.devices) == 1:
            parts.append(f"ZeRO {' and '.join(map(str, sorted({*self.sharding})))}")
        if self.recomputed:
            parts.append(f"{len(self.recomputed)} blocks recomputed")
        return ", ".join([*parts, *(["an order of chunks of its own"] if self.chunks else [])])


def check_plan_of(plan: Plan, problem: PlacementProblem, placement: np.ndarray) -> None:
    """Refuse a plan that a placement (N,) isn't of, considering the ops of micro-batches that take time.

    Raises:
        PlanError: the plan is for another step, or has an op on another device.
    """
    counts = (problem.op_time.mean(axis=1) > 0.0) & ((problem.graph.micro_batches >= 0) | (plan.num_micro_batches == 1))
    apart = np.flatnonzero(counts & (plan.placement(problem) != placement))
    if len(apart):
        raise PlanError(
            f"the plan has {problem.graph.op_names[apart[0]]} on another device than the placement: one of the two was "
            "changed: leave the plan out, or plan this step anew"
        )


def plan_of_inference(problem: PlacementProblem, placement: np.ndarray) -> Plan | None:
    """The plan whose stages are the runs of layers that a placement (N,) has on one device each, in one micro-batch.

    None if a layer is on several devices, or the step is in several micro-batches.
    """
    cut = layers(problem, False)
    busy = cut.busy_us > 0.0
    device = np.zeros(len(cut), np.int64)
    device[cut.number[busy]] = placement[busy]
    borders = np.flatnonzero(np.diff(device)) + 1
    stages = tuple((number,) for number in device[[0, *borders]].tolist())
    plan = Plan(stages, tuple(borders.tolist()), (((0,),),) * len(stages), len(cut))
    try:
        check_plan_of(plan, problem, placement)
    except PlanError:
        return None
    return plan


def on_devices(devices: Iterable[int], cluster: Cluster) -> str:
    """Return a phrase such as "on 2 devices"; if kinds differ in the cluster, such as "on 2 x v100 + 1 x p100"."""
    counts = Counter(cluster.devices[device].kind for device in sorted(devices))
    if len({device.kind for device in cluster.devices}) == 1:
        return f"on {counts.total()} devices"
    return f"on {' + '.join(f'{count} x {kind}' for kind, count in counts.items())}"


def dealt(count: int, speed: Sequence[float] | np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Deal micro-batches to replicas, each to the replica that would end it first.

    Args:
        count: M.
        speed: (R,) of the replicas' devices.

    >>> dealt(4, [1.0, 1.0]), dealt(4, [2.0, 1.0])
    (((0, 2), (1, 3)), ((0, 1, 3), (2,)))
    """
    done, taken = np.zeros(len(speed)), [list[int]() for _ in speed]
    for micro_batch in range(count):
        replica = int(((done + 1) / np.asarray(speed)).argmin())
        taken[replica].append(micro_batch)
        done[replica] += 1
    return tuple(map(tuple, taken))
