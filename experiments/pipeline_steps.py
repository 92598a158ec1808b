"""A training step of a pipeline with replicas, from the times of its layers: a graph, its placement and its order.

Stages of contiguous layers run one forward, one backward, as DeepSpeed's `TrainSchedule` has it: stage s of S runs the
forward pass of micro-batch m as number 2 m + s of its turns, and its backward pass as number 2 m + 2 S - 1 - s. Before
a turn it exchanges with its neighbours what the turns before have made, gradients first. Once its last backward pass is
over, the replicas of a stage sum their gradients round a ring, as NCCL does, or an all-reduce takes a given time. Then
each updates its parameters.

Other schedules are given by the turns of each device; one may then have several stages.

A transfer goes over the cluster's link while devices compute. Where sends wait, each has its place in the order of its
device, behind the gradient that the device receives before the same turn; and the sender stands still for as long as
the bytes take over a free link. The receiver always stands still until they have come.

Legend: L layers, D devices, S stages, R replicas of each, M micro-batches of each replica.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placeto.problem.cluster import Cluster
from placeto.problem.dispatch import order_of_lists
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate

FIXED_ORDER = "Times are simulated: by the default cost model, each device in a fixed order."
_FORWARD, _BACKWARD, _UPDATE = ({"pass": name} for name in ("forward", "backward", "optimizer"))


@dataclass(frozen=True, eq=False)
class PipelineStep:
    """What a step is made of. Bytes that cross a border or a sum are those of all GPUs of a device together."""

    stages: Sequence[Sequence[int]]  # (S,) the layers of each
    devices: Sequence[Sequence[int]]  # (S, R)
    micro_batches: int  # M
    time_us: np.ndarray  # (L, D, 3) microseconds of a layer: forward, backward, update
    boundary_bytes: int  # of the activations between two layers, of one micro-batch
    parameter_bytes: np.ndarray  # (L,) of gradients
    saved_bytes: np.ndarray  # (L, D) on one GPU, from a layer's forward to its backward pass
    resident_bytes: np.ndarray  # (D,) on one GPU: parameters, gradients, state of the optimizer
    receive_us: np.ndarray  # (D,) microseconds of work for what has arrived
    waits: bool = False  # whether sends between stages have a place in the order, and keep the sender
    tied_bytes: int = 0  # of gradients that the first and the last stage sum, each with its peer
    turns: Mapping[tuple[bool, int, int], int] | None = None  # by (backward, stage, micro-batch), of another schedule
    sum_us: Callable[[int, int], float] | None = None  # of an all-reduce, by bytes and devices, in place of transfers
    sum_share: float = 1.0  # of a link's bandwidth, which transfers of sums reach; 1 for links that sums were timed on


@dataclass
class Program:
    """Ops, devices and lists in the making."""

    cluster: Cluster
    ops: list[dict[str, Any]] = field(default_factory=list)
    placed: list[int] = field(default_factory=list)  # device of each op
    when: list[tuple[float, ...]] = field(default_factory=list)  # places in the order of its device

    def add(
        self, name: str, device: int, when: tuple[float, ...], time_us: float, record: Mapping[str, Any]
    ) -> tuple[str, int]:
        """An op at a place in the order of its device; returns its first output."""
        self.ops.append({"name": name, "time_us": {"*": time_us}, **record})
        self.placed.append(device)
        self.when.append(when)
        return name, 0

    def sent_us(self, size: int, src: int, dst: int) -> float:
        """Microseconds of a transfer over a free link."""
        return float(self.cluster.latency_us[src, dst] + size / self.cluster.bandwidth[src, dst])

    def schedule(self, name: str) -> Schedule:
        """All of it, each device in its order."""
        graph = ComputationGraph.from_ops(name, self.ops)
        lists: list[list[int]] = [[] for _ in range(self.cluster.num_devices)]
        for op in sorted(range(len(self.ops)), key=self.when.__getitem__):
            lists[self.placed[op]].append(op)
        problem = PlacementProblem(graph, self.cluster, dispatch="list")
        return simulate(problem, np.array(self.placed), order=order_of_lists(graph, lists))


def simulated(step: PipelineStep, cluster: Cluster, name: str = "step") -> Schedule:
    """The schedule of a step on the cluster that its numbers of devices mean."""
    program = Program(cluster)
    for device, size in enumerate(step.resident_bytes.tolist()):
        record = {"type": "buffer", "param_bytes": size, "trained_bytes": 0}
        program.add(f"resident {device}", device, (-1.0,), 0.0, record)
    for replica in range(len(step.devices[0])):
        for number in range(step.micro_batches):
            _micro_batch(step, program, replica, number)
    _sums(step, program)
    return program.schedule(name)


def _micro_batch(step: PipelineStep, program: Program, replica: int, number: int) -> None:
    """Both passes of one micro-batch through one replica of all stages."""
    count, places = len(step.stages), [own[replica] for own in step.devices]
    micro_batch, made = number * len(step.devices[0]) + replica, ("", 0)
    label = f"m{number} r{replica}"
    for stage, layers in enumerate(step.stages):
        place, when = places[stage], _turn(step, False, stage, number)
        if stage:
            made = _sent(step, program, f"{label} s{stage}", made, (places[stage - 1], place), (when, 1.0))
        for position, layer in enumerate(layers):
            border = layer == layers[-1] and stage + 1 < count
            saved = int(step.saved_bytes[layer, place])
            record = {"inputs": [made] * (layer > 0), "outputs": [step.boundary_bytes * border, saved], **_FORWARD}
            record["micro_batch"] = micro_batch
            time_us = float(step.time_us[layer, place, 0])
            made = program.add(f"f{layer} {label}", place, (when, 2.0, position), time_us, record)
    for stage in reversed(range(count)):
        place, when = places[stage], _turn(step, True, stage, number)
        if stage + 1 < count:
            made = _sent(step, program, f"{label} g{stage}", made, (places[stage + 1], place), (when, 0.0))
        for position, layer in enumerate(reversed(step.stages[stage])):
            border = layer == step.stages[stage][0] and stage > 0
            record = {"inputs": [made, (f"f{layer} {label}", 1)], "outputs": [step.boundary_bytes * border]}
            record |= {"micro_batch": micro_batch, **_BACKWARD}
            time_us = float(step.time_us[layer, place, 1])
            made = program.add(f"b{layer} {label}", place, (when, 2.0, position), time_us, record)


def _turn(step: PipelineStep, backward: bool, stage: int, number: int) -> float:
    """When a stage runs a pass of a micro-batch, in the order of its device."""
    if step.turns is not None:
        return float(step.turns[backward, stage, number])
    return float(2 * number + (2 * len(step.stages) - 1 - stage if backward else stage))


def interleaved(devices: int, chunks: int, micro_batches: int) -> dict[tuple[bool, int, int], int]:
    """Turns of interleaved 1F1B, as Megatron and torch.distributed.pipelining have it; stage s is on device s mod D.

    Narayanan et al., SC 2021, arXiv 2104.04473.

    Args:
        devices: D.
        chunks: stages of each device.
        micro_batches: a multiple of D.
    """
    turns = {}
    for device in range(devices):
        order = []
        for number in range(micro_batches * chunks):
            turn, within = divmod(number, devices * chunks)
            order.append((within // devices, turn * devices + within % devices))
        first = min(len(order), 2 * (devices - device - 1) + (chunks - 1) * devices)
        passes = [(False, chunk, number) for chunk, number in order]
        back = [(True, chunks - 1 - chunk, number) for chunk, number in order]
        listed = passes[:first]
        for forward, backward in zip(passes[first:], back, strict=False):
            listed += [forward, backward]
        listed += back[len(passes) - first :]
        for place, (last, chunk, number) in enumerate(listed):
            turns[last, chunk * devices + device, number] = place
    return turns


def _sent(
    step: PipelineStep,
    program: Program,
    name: str,
    made: tuple[str, int],
    ways: tuple[int, int],
    when: tuple[float, float],
) -> tuple[str, int]:
    """What has come from one stage to the next, at a place in the order of both."""
    src, dst = ways
    if step.waits:
        program.ops[-1]["outputs"][0] = 0
        sent = {"inputs": [made], "outputs": [step.boundary_bytes]}
        made = program.add(f"{name} send", src, (*when, 0.0), 0.0, sent)
        program.add(f"{name} leave", src, (*when, 1.0), program.sent_us(step.boundary_bytes, src, dst), {})
    record = {"inputs": [made], "outputs": [0]}
    return program.add(f"{name} take", dst, (*when, 2.0), float(step.receive_us[dst]), record)


def _sums(step: PipelineStep, program: Program) -> None:
    """Sums of gradients behind the last backward passes, and the update."""
    ended = {
        device: (f"b{layers[0]} m{step.micro_batches - 1} r{replica}", 0)
        for layers, own in zip(step.stages, step.devices, strict=True)
        for replica, device in enumerate(own)
    }
    sums: list[tuple[str, Sequence[int], int]] = []
    if step.tied_bytes and len(step.stages) > 1:
        ends = zip(step.devices[0], step.devices[-1], strict=True)
        sums += [(f"tied {replica}", pair, step.tied_bytes) for replica, pair in enumerate(ends)]
    for stage, (layers, own) in enumerate(zip(step.stages, step.devices, strict=True)):
        sums.append((f"s{stage}", own, int(step.parameter_bytes[list(layers)].sum())))
    needed = {device: [output] for device, output in ended.items()}
    for turn, (name, members, size) in enumerate(sums):
        if len(members) > 1 and step.sum_us:
            given = _collective(program, name, members, step.sum_us(size, len(members)), ended, turn)
        elif len(members) > 1:
            given = _ring(program, name, members, int(size / len(members) / step.sum_share), ended, turn)
        else:
            continue
        for device, outputs in given.items():
            needed[device] += outputs
    for stage, (layers, own) in enumerate(zip(step.stages, step.devices, strict=True)):
        for device in own:
            time_us = float(step.time_us[list(layers), device, 2].sum())
            record = {"inputs": needed[device], **_UPDATE}
            program.add(f"update {stage} of {device}", device, (math.inf, math.inf), time_us, record)


def _collective(
    program: Program, name: str, members: Sequence[int], us: float, ended: Mapping[int, tuple[str, int]], turn: int
) -> dict[int, list[tuple[str, int]]]:
    """All devices begin when the last one is ready, and take the same time; returns what each is given."""
    ready = []
    for device in members:
        record: dict[str, Any] = {"inputs": [ended[device]], "outputs": [0]}
        ready.append(program.add(f"{name} ready {device}", device, (math.inf, turn, 0.0), 0.0, record))
    record = {"inputs": ready, "outputs": [0]}
    return {
        device: [program.add(f"{name} on {device}", device, (math.inf, turn, 1.0), us, record)] for device in members
    }


def _ring(
    program: Program,
    name: str,
    members: Sequence[int],
    share: int,
    ended: Mapping[int, tuple[str, int]],
    turn: int,
) -> dict[int, list[tuple[str, int]]]:
    """In each of 2 (R - 1) rounds each device hands a share to the next; returns what each is given.

    Patarasuk and Yuan, Journal of Parallel and Distributed Computing 69, 2009.
    """
    count, given = len(members), {device: list[tuple[str, int]]() for device in members}
    for step in range(2 * count - 1):
        for place, device in enumerate(members):
            come = (f"{name} round {step - 1} {(place - 1) % count}", 0) if step else ended[device]
            record = {"inputs": [come], "outputs": [share]}
            made = program.add(f"{name} round {step} {place}", device, (math.inf, turn, float(step)), 0.0, record)
            given[device] = [made]
    return given
