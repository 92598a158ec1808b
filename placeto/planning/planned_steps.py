"""Ways to run a step, as rows of a table.

Legend: D devices, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from placeto.formats.placement import described
from placeto.formats.plan import PlanFile
from placeto.plumbing.terminal import table
from placeto.problem.cluster import Cluster, Device
from placeto.problem.cluster.groups import grouped
from placeto.problem.graph import ComputationGraph
from placeto.problem.step.plan import Plan, on_devices
from placeto.problem.step.plan_files import plan_document
from placeto.problem.step.recomputation import RECOMPUTATION, captured_hash, recomputable, recomputed_of
from placeto.problem.units import format_bytes, format_rate, format_us
from placeto.simulator.result import PlacementResult
from placeto.simulator.schedule import Schedule
from placeto.simulator.tool_steps.data_parallel import ratio


class Kind(StrEnum):
    """Kinds of ways, from the simplest on."""

    ONE = "one device"
    GROUP = "tensor parallel"
    WHOLE = "whole modules"
    REPLICAS = "data parallel"
    SHARDED = "data parallel, optimizer sharded"
    GRADIENTS_SHARDED = "data parallel, gradients sharded"
    FULLY_SHARDED = "data parallel, fully sharded"
    PIPELINE = "pipeline"
    INTERLEAVED = "interleaved pipeline"
    FREE = "free placement"


PIPELINES = (Kind.PIPELINE, Kind.INTERLEAVED)
_REPLICAS = Kind.REPLICAS, Kind.SHARDED, Kind.GRADIENTS_SHARDED, Kind.FULLY_SHARDED  # by their stage of ZeRO
_IN_PROGRAM_ORDER = [*Kind][2:7]
_RUN_BY = {
    Kind.ONE: "PyTorch",
    Kind.GROUP: "torch",
    Kind.REPLICAS: "torch DDP",
    Kind.SHARDED: "torch DDP, ZeRO",
    Kind.GRADIENTS_SHARDED: "torch FSDP",
    Kind.FULLY_SHARDED: "torch FSDP",
}
_TOOLS = {"torch": "torch-pipeline", "megatron": "Megatron-LM"}
_ON_ONE_HOST = "accelerate", "placeto run"
LEFT = 0.05
"""Share of a device's memory: if less is left, `Plans.advice` says what else needs memory. In three public reports of
PyTorch's "CUDA out of memory", on boards of 16 and 24 GB, 3.0, 3.2 and 13 % of the memory were no tensors, but the
CUDA context with kernels (0.2 to 2.2 GB) and fragments that the allocator had reserved (0.2 to 1.0 GB)."""
LAUNCH_US = 50.0
"""Microseconds in which a host launches an op of eager PyTorch: see experiments/decisions/2026-11-29-launches.md."""
GAIN = 0.005
"""A free placement is shown if it is faster than all other ways by this share of their step."""
CHECKPOINTED = "what the model checkpoints"
"""What is recomputed if the captured model has activation checkpoints of its own."""
_SHORT = {"weights": "w", "gradients": "g", "optimizer": "o", "activations": "a", "received": "r"}


def kind_of(plan: Plan) -> Kind:
    """Return the kind of way that a plan is."""
    if len(plan.devices) == 1:
        alone = Kind.ONE if plan.width == 1 else Kind.GROUP
        return alone if len(plan.used) == 1 else _REPLICAS[max(plan.sharding, default=0)]
    return Kind.INTERLEAVED if plan.interleaved else Kind.PIPELINE


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """One way to run a step."""

    plan: Plan | None  # None for whole modules and for a free placement
    result: PlacementResult  # the simulation; for frameworks, of the graph that they make of the captured step
    placement: PlacementResult | None  # of the captured step; None if parameters are sharded
    fullest: int  # the device that uses the largest share of its memory
    memory: Mapping[str, int]  # bytes by `CATEGORIES`, of the fullest device
    tool: str | None = None  # the tool as which it is simulated, if one was asked for; accelerate for whole modules
    graph: ComputationGraph | None = None  # the captured step, with what is recomputed; None = that of `placement`

    @property
    def kind(self) -> Kind:
        """The kind of way."""
        if self.plan is not None:
            return kind_of(self.plan)
        return Kind.WHOLE if self.tool == "accelerate" else Kind.FREE

    @cached_property
    def shape(self) -> str:
        """How devices are used, such as "2 stages x 4"."""
        cluster = self.result.problem.cluster
        if self.plan is None:
            return on_devices(np.unique(self.result.placement).tolist(), cluster)
        return self.device.name if self.kind in (Kind.ONE, Kind.GROUP) else self.plan.shape(cluster)

    @property
    def width(self) -> int:
        """Number of boards of the tensor-parallel group that each device is."""
        return 1 if self.plan is None else self.plan.width

    @property
    def micro_batches(self) -> int:
        """M."""
        return self.result.problem.graph.num_micro_batches if self.plan is None else self.plan.num_micro_batches

    @property
    def device(self) -> Device:
        """The fullest device."""
        return self.result.problem.cluster.devices[self.fullest]

    @property
    def room(self) -> int:
        """Bytes of memory of the fullest device."""
        return self.device.memory

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule of `result`."""
        return self.result.schedule()

    @cached_property
    def placed(self) -> Schedule:
        """The schedule of `placement`, which `placeto export` takes; `schedule` if there is no such placement."""
        return self.schedule if self.placement is None else self.placement.schedule()

    @cached_property
    def step_us(self) -> float:
        """Simulated microseconds of a step; without a plan, one process launches the ops of all devices."""
        us, launch_us = self.result.makespan_us, self.result.problem.cluster.launch_us
        if self.plan is not None or not launch_us.any():
            return us
        ran = self.schedule.placement[self.schedule.finish_us > self.schedule.start_us]
        return max(us, float(launch_us[ran].sum()))

    @property
    def used(self) -> int:
        """Bytes that the fullest device holds."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether no device exceeds its memory."""
        return self.used <= self.room

    @property
    def lacks(self) -> int:
        """Bytes that the fullest device lacks; below 0 if it has some left."""
        return self.used - self.room

    @property
    def resident_bytes(self) -> int:
        """Bytes of parameters, gradients and the optimizer's state on the fullest device."""
        return int(self.result.problem.resident_bytes[self.result.placement == self.fullest].sum())

    @property
    def kept(self) -> int:
        """Bytes that the fullest device holds for the whole step, whatever is recomputed."""
        if self.kind in (Kind.REPLICAS, Kind.SHARDED):  # each has all weights and gradients
            return self.used - self.memory["activations"]
        return self.resident_bytes

    @property
    def idle(self) -> float:
        """The bubble: the share of the step in which a device computes nothing, as a mean over the whole cluster."""
        schedule = self.schedule
        return 1.0 - float(schedule.busy_us.sum()) / (self.result.problem.num_devices * schedule.makespan_us)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all transfers between devices; each rank of a group sends its own."""
        schedule = self.schedule
        return self.width * int(schedule.lowering.flat.tensor_bytes[schedule.send_tensor].sum())

    @property
    def parts(self) -> str:
        """A phrase such as " in 8 micro-batches"; "" for the whole batch."""
        return "" if self.micro_batches == 1 else f" in {self.micro_batches} micro-batches"

    @property
    def how(self) -> str:
        """Micro-batches and recomputation, such as " in 4 micro-batches, recomputing 5 of 22 blocks"; may be ""."""
        return self.parts + (f", recomputing {self.recomputed}" if self.recomputed else "")

    @property
    def name(self) -> str:
        """Kind, shape and number of micro-batches, such as "pipeline (4 stages x 2) in 8 micro-batches"."""
        return f"{self.kind} ({self.shape}){self.how}"

    @cached_property
    def recomputed(self) -> str:
        """Which activations are computed again for the backward pass, such as "5 of 22 blocks"; "" if none are."""
        graph = self.graph or (self.placement or self.result).problem.graph
        if self.plan is not None and self.plan.recomputed and (made_of := recomputed_of(graph)) is not None:
            return f"{len(self.plan.recomputed)} of {len(recomputable(made_of.graph))} blocks"
        return CHECKPOINTED if RECOMPUTATION in graph.passes else ""

    @property
    def order(self) -> str:
        """In which order a device runs its ops: a dispatch, "own list", or "program" for replicas and whole modules."""
        if self.kind in _IN_PROGRAM_ORDER:
            return "program"
        return self.result.problem.dispatch if self.result.order is None else "own list"

    @cached_property
    def run_by(self) -> str:
        """A tool that can run this way, of a pipeline torch if it can, unless another was asked for; "-" = none."""
        if self.tool is not None:
            return _TOOLS.get(self.tool, self.tool)
        if self.kind in PIPELINES and not self.torch_refusal:
            return "torch-pipeline"
        if self.kind == Kind.SHARDED and self.width > 1:
            return "Megatron-LM"  # torch's ZeroRedundancyOptimizer takes no parameters that a group shards
        if self.width > 1:
            return f"{_RUN_BY[self.kind]}, TP" if self.kind in _RUN_BY else "torchtitan"
        return _RUN_BY.get(self.kind, "-" if self.plan and self.plan.recomputed else "placeto run")

    @property
    def only_on_one_host(self) -> bool:
        """Whether the way uses devices of several hosts, and the tool that runs it uses only those of one."""
        hosts = self.result.problem.cluster.hosts
        return self.run_by in _ON_ONE_HOST and len({hosts[device] for device in np.unique(self.result.placement)}) > 1

    @property
    def warning(self) -> str:
        """A sentence if the way fits so tightly that it may not fit in fact; else ""."""
        if self.device.is_cpu or not 0 <= -self.lacks < LEFT * self.room:
            return ""
        left = f"{format_bytes(-self.lacks)} of {format_bytes(self.room)}"
        return (
            f" Only {left} are left, and the CUDA context, kernels and fragments need memory, too: plan with "
            "--headroom 1GB to keep some free."
        )

    @property
    def launch_warning(self) -> str:
        """A sentence if launching ops may take longer than the step, and the cluster doesn't say how long it takes."""
        busy, cluster = self.schedule, self.result.problem.cluster
        timed = busy.placement[busy.finish_us > busy.start_us]
        most = int(np.bincount(timed, minlength=cluster.num_devices)[[*cluster.computing]].max(initial=0))
        if cluster.launch_us.any() or most * LAUNCH_US <= self.step_us:
            return ""
        bound, often = format_us(self.step_us / most), format_us(LAUNCH_US)
        return (
            f" A device runs {most:,} ops in a step: if its host takes longer than {bound} to launch each, the step "
            f"takes longer. Eager PyTorch often takes {often}: `placeto cluster --launch-us` makes that count."
        )

    @cached_property
    def torch_refusal(self) -> str:
        """Why torch can't run a pipeline; "" if it can."""
        if self.plan is None or self.placement is None:
            return ""
        return self.plan.refusal(self.placement.problem)

    def file(self, cluster: Cluster, batch: int) -> PlanFile:
        """Return the content of a plan file for this way of `batch` samples; the cluster has all of its memory."""
        fixed = str(self.kind), self.shape, self.micro_batches, self.order, self.run_by, batch, float(self.step_us)
        plan, placed = self.plan, None
        if self.placement is not None:
            plan = plan or self.placement.plan  # where a search for a free placement ended with a plan
            placed = replace(described(self.placement), cluster=cluster.name, plan=None)
        way = None if plan is None else plan_document(plan, grouped(cluster, plan.width))
        graph = self.graph if self.placement is None else self.placement.problem.graph
        graph_hash = None if graph is None else captured_hash(graph)
        return PlanFile(*fixed, self.memory, self.room, self.fits, cluster.hash, way, placed, graph_hash)


class WayOut(NamedTuple):
    """A change to a step that fits in no way, and the best way then. It may not fit either."""

    change: str  # such as "a batch of 8"
    step: PlannedStep
    further_us: float = 0.0  # microseconds beside the simulated ones, at most
    on_host: int = 0  # bytes that a host keeps, at most


@dataclass(frozen=True, eq=False)
class Plans:
    """Ways to run a step, best first: those that fit, by their time, then the others."""

    steps: tuple[PlannedStep, ...]
    left_out: Mapping[int, str]  # numbers of micro-batches that the step can't be split into, and why
    batch: int = 0  # samples of a step; 0 = unknown
    refused: str = ""  # if only pipelines for torch were wanted: why torch can't run the first that it refused
    tried: tuple[int, ...] = ()  # numbers of micro-batches
    no_groups: str = ""  # why no way has tensor-parallel groups, or none of some width
    searched: bool = False  # whether a free placement was sought; it is among the steps if it gains `GAIN`
    unlimited: PlannedStep | None = None  # the fastest way with any memory; None if it fits
    ways_out: tuple[WayOut, ...] = ()  # if nothing fits
    headroom: int = 0  # bytes of each device that stay free

    @property
    def best(self) -> PlannedStep:
        """The best way, which is the first."""
        return self.steps[0]

    def samples_per_second(self, step: PlannedStep) -> float | None:
        """Samples of the batch divided by the simulated seconds of a way's step; None if the batch isn't known."""
        return self.batch * 1e6 / step.step_us if self.batch else None

    def advice(self) -> str:
        """Say which way to use and why, and what the best way of another kind would take."""
        best, others = self.best, self.steps[1:]
        if not best.fits:
            least = f"{best.name} lacks the least, {format_bytes(best.lacks)}"
            return f"None of these fits: {least}.{advice_on_ways_out(self.steps, self.ways_out, timed=True)}"
        one_device, gain = next((step for step in self.steps if step.kind == Kind.ONE), None), ""
        if one_device is not None and best is not one_device:
            gain = f", {one_device.step_us / best.step_us:.2f} times as fast as one device{one_device.parts}"
        if one_device is not None and not one_device.fits:
            gain = ", and one device lacks the memory for it"
        text = f"Use {best.name}: a step takes {format_us(best.step_us)}{gain}."
        different = (step for step in others if step.fits and step.kind != best.kind)
        if second := next(different, None):
            times, held = ratio(second.step_us, best.step_us), format_bytes(second.used)
            longer = f"{100.0 * (times - 1.0):.1f} % longer" if times >= 1.0005 else "as long"
            which = "Next is" if second is others[0] else "The best way of another kind is"
            text += f" {which} {second.name}: {longer if times < 2.0 else f'{times:.2f} times as long'}"
            if held != (before := format_bytes(best.used)):
                text += f", and {held} on the fullest device in place of {before}"
            text += "."
        if (free := self.unlimited) is not None:
            text += f" With {format_bytes(free.used)} on a device, {free.name} would take {format_us(free.step_us)}"
            text += f": the memory costs {100.0 * (best.step_us / free.step_us - 1.0):.1f} %."
        text += ("" if self.headroom else best.warning) + best.launch_warning
        if best.only_on_one_host:
            text += f" {best.run_by} runs on the devices of one host only"
            other = next((step for step in others if step.fits and not step.only_on_one_host), None)
            text += f"; on several hosts {other.run_by} runs {other.name}." if other else "."
        if self.searched and all(step.kind != Kind.FREE for step in self.steps):
            text += f" A search among free placements of ops found none that is {100.0 * GAIN:g} % better."
        return text

    def cells(self) -> list[list[str]]:
        """Return the table as texts: the names of its columns, then a row for each way."""
        head = ["way", "shape", "M", "recomputed", "order", "step", "samples/s"]
        head += ["fullest device", "of", "idle", "sent", "run by"]
        rows = [
            [
                step.kind,
                step.shape,
                f"{step.micro_batches}",
                step.recomputed or "-",
                step.order,
                format_us(step.step_us),
                "-" if (rate := self.samples_per_second(step)) is None else format_rate(rate),
                " ".join(f"{_SHORT[name]} {format_bytes(size)}" for name, size in step.memory.items() if size),
                format_bytes(step.room) if step.fits else f"{format_bytes(step.room)}: too little",
                f"{100.0 * step.idle:.1f} %",
                format_bytes(step.sent_bytes),
                f"{step.run_by}, on one host only" if step.only_on_one_host else step.run_by,
            ]
            for step in self.steps
        ]
        return [head, *rows]

    def __str__(self) -> str:
        return table(self.cells())


def advice_on_ways_out(steps: Sequence[PlannedStep], ways_out: Sequence[WayOut], timed: bool) -> str:
    """Return sentences on what lets a step fit, what doesn't, and what was not tried.

    Args:
        steps: the ways that were tried, which don't fit.
        ways_out: the changes that were planned.
        timed: whether the speeds of the devices are known.
    """
    fitting, lacking, untried = list[str](), list[str](), list[str]()
    for change, step, further_us, on_host in ways_out:
        if step.fits:
            most = "at most " if further_us else ""
            took = f"{most}{format_us(step.step_us + further_us)} a step, " if timed else ""
            held = f" and {format_bytes(on_host)} of the host's" if on_host else ""
            fitting.append(f"{change}: {step.name}, {took}{format_bytes(step.used)} of {format_bytes(step.room)}{held}")
        else:
            lacking.append(f"{change} lacks {format_bytes(step.lacks)}")
    text = f" It fits with {'; with '.join(fitting)}." if fitting else ""
    text += f" Not enough: {'; '.join(lacking)}." if lacking else ""
    if not any(step.recomputed or recomputable(step.result.problem.graph) for step in steps):
        untried.append("activation checkpoints, which a FACTORY can switch on in its module")
    if max(step.memory["optimizer"] - step.memory["gradients"] for step in steps) > 0:
        untried.append("an optimizer with less state (--optimizer lion or sgd)")
    devices = max(len(step.result.problem.cluster.computing) for step in steps)
    if devices > 1 and not any(step.kind == Kind.FULLY_SHARDED for step in steps):
        untried.append(f"parameters divided by FSDP, which needs a batch that {devices} divides")
    untried.append("optimizer state in 8 bits, which Placeto doesn't simulate")
    return f"{text} Not tried: {'; '.join(untried)}."
