"""Are simulated steps of pipelines as long as those that Sailor measured, and do they take as much memory?

python -m experiments.outside_sailor [--data ../shared/data/parallel/sailor]

Sailor (Strati et al., SOSP 2025, github.com/eth-easl/sailor, MIT) measured training steps of OPT-350M in plans of
stages, replicas and tensor parallelism. It also gives times of single layers and bandwidths of links. Here a group of
tensor parallelism is one device, since its effect is inside the times of layers. Each plan is a graph of layers in
micro-batches, placed as the plan says, in the order of DeepSpeed's schedule, which Sailor's runs follow.

What a run does is read off its program, Megatron-DeepSpeed; no number is fitted to a step. A GPU of a group sends its
share of the activations, and the receiving group gathers them over its own links. DeepSpeed's TrainSchedule sends an
activation behind the receive of a gradient of the same turn, and the sender stands still while its bytes leave.
Gradients are summed after the last backward pass. The update that Sailor gives for each layer is that of the model
which was profiled: the embedding, two layers and the head (profile.sh); at AdamW's 28 bytes a parameter it is 0.66 to
0.80 of the memory bandwidth of the four GPUs. Memory is 24 bytes a parameter (in float32 the parameter, its gradient,
AdamW's moments, a buffer for sums and a copy of DeepSpeed's) and what loaded kernels take, both by Sailor's own
constants, and the activations of a layer from its forward to its backward pass.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.command import command
from experiments.pipeline_steps import PipelineStep, simulated
from experiments.tables import markdown
from placeto.problem.cluster import Cluster, Device
from placeto.simulator.schedule import Schedule

MODEL = "OPT-350"
PROFILED = (0, 1, 2, -1)
"""Layers of the model whose update was measured."""
PARAMETER = 24
"""Bytes for each parameter: runtime_simulator.py of Sailor."""
KERNELS = {"GH-96": 5.06e9, "": 3.0e9}
"""Bytes that loaded kernels take: runtime_simulator.py of Sailor, for the GH200 and for others."""
REPEATED = ("mit_N6_D2",)
"""Plans whose files repeat the time, sync and memory of another plan to the digit."""
FAMILIES = {"clariden": "GH200", "mit": "mixed"}
RIVALS = {
    "Sailor": ("5.7 % (16)", "7.7 % (27)"),
    "Metis": ("5.8 % (57)", "28.8 % (49)"),
    "FlashFlex": ("9.1 % (63)", "64.8 % (88)"),
    "AMP": ("248 % (293)", "37 % (49)"),
    "layer times alone": ("8.8 %", "30.4 %"),
    "layer times, measured sync": ("5.8 %", "22.8 %"),
}
"""Median (largest) error on GH200 and mixed plans, of 14 and 8 plans: SOURCES.md of the data."""


class Group(NamedTuple):
    """A group of tensor parallelism: a device."""

    kind: str
    gpus: int
    zone: str
    stage: int


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan that was run."""

    name: str
    stages: tuple[tuple[int, ...], ...]  # (S,) layers
    devices: tuple[tuple[int, ...], ...]  # (S, R)
    groups: tuple[Group, ...]  # (D,)
    micro_batch: int  # samples
    batch: int  # samples of a step
    step_s: float
    sums_s: float  # of gradients, as measured
    memory: int  # bytes of the fullest GPU

    @property
    def family(self) -> str:
        """Where it ran."""
        return FAMILIES[self.name.split("_")[0]]

    @property
    def micro_batches(self) -> int:
        """M, of each replica."""
        return self.batch // self.micro_batch // len(self.devices[0])

    @property
    def gpus(self) -> int:
        """How many it takes."""
        return sum(group.gpus for group in self.groups)


@dataclass(frozen=True, eq=False)
class Measured:
    """What Sailor measured of parts."""

    profiles: dict[str, Any]  # [GPU][micro-batch][GPUs of a group][layer] = forward, backward, update, in s
    layers: dict[str, Any]  # [GPUs of a group][layer] = bytes
    between: dict[str, Any]  # links of groups: [zone][GPU][GPUs][zone][GPU][GPUs]
    within: dict[str, Any]  # links of a group: [GPU][GPUs]

    def layer_bytes(self, gpus: int, what: str) -> np.ndarray:
        """(L,) int64, bytes of each layer on one GPU of a group."""
        layers = self.layers[str(gpus)]
        return np.array([layers[str(layer)][what] for layer in range(len(layers))], np.int64)


def read_measured(folder: Path) -> Measured:
    """The files beside the plans."""
    names = "profiles", "llm_info", "multizone_bandwidths_het", "intra_node_bandwidths"
    profiles, layers, between, within = (json.loads((folder / f"{name}.json").read_text()) for name in names)
    return Measured(profiles[MODEL], layers[MODEL], between, within)


def read_plan(path: Path) -> Plan:
    """A plan and what was measured of it."""
    record = json.loads(path.read_text())
    (pipeline,) = record["pipeline_list"]
    groups: list[Group] = []
    devices = []
    for stage, replicas in enumerate(pipeline["tmp_per_stage"]):
        devices.append(tuple(range(len(groups), len(groups) + len(replicas))))
        groups += [Group(nodes[0][0], gpus, nodes[0][2], stage) for nodes, gpus in replicas]
    return Plan(
        path.stem,
        tuple(map(tuple, pipeline["layers_per_stage"])),
        tuple(devices),
        tuple(groups),
        record["mbs"],
        record["gbs"],
        record["real"],
        record["red_grads"],
        record["max_mem"],
    )


def read_plans(folder: Path) -> list[Plan]:
    """All plans but those whose measurement is another's."""
    return [read_plan(path) for path in sorted((folder / "plans").glob("*.json")) if path.stem not in REPEATED]


def bandwidth(link: Any, size: float) -> float:
    """Bytes/us of a link for messages of `size` bytes a GPU: a polynomial in log2 of their megabytes, in GB/s."""
    return float(np.polyval(link[0], max(0.0, math.log2(size / 1e6)))) * 1e3


def step_and_cluster(plan: Plan, measured: Measured) -> tuple[PipelineStep, Cluster]:
    """A plan as a graph is made of it, and its groups with their links."""
    groups, layers = plan.groups, len(measured.layers["1"])
    time_us, saved = np.zeros((layers, len(groups), 3)), np.zeros((layers, len(groups)), np.int64)
    resident, receive_us = np.zeros(len(groups), np.int64), np.zeros(len(groups))
    boundary = plan.micro_batch * int(measured.layer_bytes(1, "act_output_bytes")[0])
    for device, group in enumerate(groups):
        profile = measured.profiles[group.kind][str(plan.micro_batch)][str(group.gpus)]
        parameters = measured.layer_bytes(group.gpus, "params_bytes")
        time_us[:, device] = [np.array(profile[str(layer)]) * 1e6 for layer in range(layers)]
        time_us[:, device, 2] *= parameters / parameters[list(PROFILED)].sum()
        saved[:, device] = plan.micro_batch * measured.layer_bytes(group.gpus, "act_mem_bytes")
        held = parameters[list(plan.stages[group.stage])].sum() / 4 * PARAMETER
        resident[device] = held + KERNELS.get(group.kind, KERNELS[""])
        if group.gpus > 1:
            share = boundary / group.gpus
            receive_us[device] = (boundary - share) / bandwidth(measured.within[group.kind][str(group.gpus)], share)
    least = min(group.gpus for group in groups)
    gradients = least * measured.layer_bytes(least, "params_bytes")
    step = PipelineStep(
        plan.stages,
        plan.devices,
        plan.micro_batches,
        time_us,
        boundary,
        gradients,
        saved,
        resident,
        receive_us,
        waits=True,
    )
    return step, _cluster(plan, measured, step)


def _cluster(plan: Plan, measured: Measured, step: PipelineStep) -> Cluster:
    """Each link at the bandwidth that it has for what crosses it: activations, or shares of gradients."""
    count = len(plan.groups)
    rates = np.ones((count, count))
    for src, group in enumerate(plan.groups):
        for dst, other in enumerate(plan.groups):
            if src == dst:
                continue
            link = measured.between[group.zone][group.kind][str(group.gpus)][other.zone][other.kind][str(other.gpus)]
            if group.stage == other.stage:
                layers = list(plan.stages[group.stage])
                size = float(step.parameter_bytes[layers].sum()) / len(plan.devices[0])
            else:
                size = step.boundary_bytes
            rates[src, dst] = bandwidth(link, size / group.gpus)
    devices = tuple(Device(f"group:{number}", group.kind, 1.0, 1.0, 2**40) for number, group in enumerate(plan.groups))
    return Cluster(plan.name, devices, rates, np.zeros((count, count)))


def passes_us(schedule: Schedule) -> float:
    """When the last backward pass ends."""
    graph = schedule.problem.graph
    backward = np.array(graph.passes) == "backward"
    return float(schedule.finish_us[backward & (schedule.finish_us > schedule.start_us)].max())


def sailor_s(plan: Plan, measured: Measured) -> float:
    """Seconds of a step by Sailor's own formula, in its runtime_simulator.py (commit cf2c8e3).

    (M - 1) times the slowest stage, and the sum of all, each with its layers and transfers; then one layer's update and
    the slowest stage's ring over links of single GPUs.
    """
    last = len(plan.stages) - 1

    def rate(src: int, dst: int, size: float, gpus: int | None = None) -> float:
        one, other = plan.groups[src], plan.groups[dst]
        numbers = str(gpus or one.gpus), str(gpus or other.gpus)
        link = measured.between[one.zone][one.kind][numbers[0]][other.zone][other.kind][numbers[1]]
        return 1e6 * bandwidth(link, size)

    sent = plan.micro_batch * float(measured.layer_bytes(1, "act_output_bytes")[0])
    stages, updates, rings = [], [], [0.0]
    for stage, (layers, own) in enumerate(zip(plan.stages, plan.devices, strict=True)):
        groups = [plan.groups[device] for device in own]
        profiles = [measured.profiles[group.kind][str(plan.micro_batch)][str(group.gpus)] for group in groups]
        computed = max(sum(sum(profile[str(layer)][:2]) for layer in layers) for profile in profiles)
        updates += [profile[str(layers[0])][2] for profile in profiles]
        ways = [
            max(sent / rate(src, dst, sent) for src, dst in zip(own, plan.devices[to], strict=True))
            for to in (stage - 1, stage + 1)
            if 0 <= to <= last
        ]
        twice = len(ways) == 1 and (stage == last or last >= 3)
        stages.append(computed + sum(ways) * (2 if twice else 1))
        share = measured.layer_bytes(1, "params_bytes")[list(layers)].sum() / min(4, *(g.gpus for g in groups))
        share = float(share) / len(own)
        rings += [2 * (len(own) - 1) * share / rate(src, dst, share, 1) for src, dst in itertools.pairwise(own)]
    return float((plan.micro_batches - 1) * max(stages) + sum(stages) + max(updates) + max(rings))


@dataclass(frozen=True, eq=False)
class Simulated:
    """What comes out for a plan, in s and bytes."""

    plan: Plan
    step_s: float
    sailor_s: float  # by Sailor's formula
    passes_s: float  # until the last backward pass has ended
    memory: int
    never_s: float  # if sends had no place in the order, and no sender waited

    @property
    def error(self) -> float:
        """Of the step."""
        return self.step_s / self.plan.step_s - 1.0

    @property
    def error_with_sums(self) -> float:
        """Of the step, with the measured sums of gradients in place of ours."""
        return (self.passes_s + self.plan.sums_s) / self.plan.step_s - 1.0

    @property
    def memory_error(self) -> float:
        """Of the fullest GPU."""
        return self.memory / self.plan.memory - 1.0


def simulate_plan(plan: Plan, measured: Measured) -> Simulated:
    """Simulate a plan, and what its sends cost."""
    step, cluster = step_and_cluster(plan, measured)
    schedule = simulated(step, cluster, plan.name)
    never_s = simulated(replace(step, waits=False), cluster, plan.name).makespan_us / 1e6
    own = schedule.makespan_us / 1e6
    memory = int(schedule.peak_memory.max())
    return Simulated(plan, own, sailor_s(plan, measured), passes_us(schedule) / 1e6, memory, never_s)


def pairs_in_order(found: list[Simulated]) -> tuple[int, int]:
    """Of pairs of plans for the same GPUs and batch whose steps differ by more than 5 %: how many are right, of all."""
    right = total = 0
    for number, one in enumerate(found):
        for other in found[:number]:
            mine, theirs = one.plan, other.plan
            if (mine.family, mine.gpus, mine.batch) != (theirs.family, theirs.gpus, theirs.batch):
                continue
            if max(mine.step_s, theirs.step_s) > 1.05 * min(mine.step_s, theirs.step_s):
                total += 1
                right += (mine.step_s < theirs.step_s) == (one.step_s < other.step_s)
    return right, total


def median_and_largest(errors: list[float]) -> str:
    """Of errors without their signs."""
    size = np.abs(errors)
    return f"{100 * np.median(size):.1f} % ({100 * size.max():.0f})"


@dataclass(frozen=True)
class OutsideSailor:
    """Read, simulate, compare."""

    data: Path = Path("../shared/data/parallel/sailor")
    """folder of the plans and of what was measured"""


def main(config: OutsideSailor) -> None:
    """The tables."""
    measured = read_measured(config.data)
    found = [simulate_plan(plan, measured) for plan in read_plans(config.data)]
    head = ["plan", "GPUs", "stages x replicas", "micro-batches", "measured s", "simulated s", "error"]
    head += ["with measured sums", "by Sailor's formula", "memory GB", "simulated GB", "error"]
    rows = [_row(each) for each in found]
    print(f"{markdown([head, *rows])}\n")
    families = [[each for each in found if each.plan.family == family] for family in FAMILIES.values()]
    counts = [f"{family} ({len(own)})" for family, own in zip(FAMILIES.values(), families, strict=True)]
    ours = {
        "Placeto": [each.error for each in found],
        "Sailor's formula, these plans": [each.sailor_s / each.plan.step_s - 1 for each in found],
        "Placeto, measured sums": [each.error_with_sums for each in found],
        "Placeto, no transfer waits": [each.never_s / each.plan.step_s - 1 for each in found],
        "Placeto, memory": [each.memory_error for each in found],
    }
    table = [["median (largest) error", *counts]]
    for name, errors in ours.items():
        of = dict(zip([each.plan.name for each in found], errors, strict=True))
        table.append([name, *(median_and_largest([of[each.plan.name] for each in own]) for own in families)])
    table += [[name, *cells] for name, cells in RIVALS.items()]
    print(f"{markdown(table)}\n")
    right, total = pairs_in_order(found)
    print("From Sailor on: Sailor's own ports, on all 14 and 8 plans. Two of each are kept back here. One of the")
    print("mixed ones is left out, as its file repeats the measurement of another.\n")
    print(f"Plans for the same GPUs and batch whose steps differ by more than 5 %: {right} of {total} pairs in order.")


def _row(each: Simulated) -> list[str]:
    plan = each.plan
    shape = f"{len(plan.stages)} x {len(plan.devices[0])}"
    times = [f"{plan.step_s:.3f}", f"{each.step_s:.3f}", f"{100 * each.error:+.1f} %"]
    memory = [f"{plan.memory / 1e9:.1f}", f"{each.memory / 1e9:.1f}", f"{100 * each.memory_error:+.1f} %"]
    name = plan.name.replace(f"_{MODEL}", "")
    others = [f"{100 * error:+.1f} %" for error in (each.error_with_sums, each.sailor_s / plan.step_s - 1)]
    return [
        name,
        f"{plan.gpus}",
        shape,
        f"{plan.micro_batches}",
        *times,
        *others,
        *memory,
    ]


if __name__ == "__main__":
    command(main, OutsideSailor, "outside_sailor", __doc__, "Times are simulated, from measured times of layers.")
