"""Whether a training step fits into the memory of a device, if need be with micro-batches, recomputation or sharding.

Nothing is placed, and times don't matter: one device runs the step in the order of the program, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from placeto.errors import CaptureError
from placeto.planning.numbers import COUNTS
from placeto.planning.planned_steps import Kind, PlannedStep, ways_out
from placeto.planning.short_memory import fewest_blocks
from placeto.planning.single_ways import one_device, sharded
from placeto.planning.ways import plans_of
from placeto.plumbing.terminal import table
from placeto.problem.cluster import Cluster, Device
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.recomputation import recomputable
from placeto.problem.units import format_bytes
from placeto.simulator.readings.memory_timeline import CATEGORIES

if TYPE_CHECKING:
    from placeto.problem.graph import ComputationGraph

Capture = Callable[[int], "ComputationGraph"]
"""Captures the step, given the number of micro-batches."""
Way = Callable[[PlacementProblem, tuple[str, ...]], PlannedStep]
"""Makes a way to run the problem of a step that recomputes some blocks."""


@dataclass(frozen=True)
class Fits:
    """What a step needs on devices of each kind, in each way that was tried; if one way fits a kind, it is the last.

    The ways are one device, all devices with divided parameters, or another way that `placeto plan` tries.
    """

    steps: tuple[PlannedStep, ...]
    left_out: Mapping[int, str]  # numbers of micro-batches that the step can't be split into, and why

    def advice(self) -> str:
        """Say for each kind of device, in a sentence each, how the step fits, or how much memory is missing."""
        sentences = []
        alone = [step for step in self.steps if step.kind == Kind.ONE]
        for device in _kinds(step.device for step in alone):
            *_, last = on_device = [step for step in alone if step.device == device]
            if last.fits:
                left = format_bytes(last.room - last.used)
                sentences.append(f"It fits on {_named(device)}{_how(last)}, with {left} left.{last.warning}")
            elif resident_bytes(last) > last.room:
                held = format_bytes(resident_bytes(last))
                sentences.append(f"It doesn't fit on {_named(device)}: weights, gradients and optimizer take {held}.")
            else:
                least = min(on_device, key=_lack)
                sentences.append(
                    f"It doesn't fit on {_named(device)}: it lacks {format_bytes(_lack(least))}{_how(least)}."
                )
        divided = [step for step in self.steps if step.kind != Kind.ONE]
        if divided:
            step = min(divided, key=_lack)
            way = f"As {step.kind} ({step.shape})"
            if step.kind == Kind.FULLY_SHARDED:
                way = f"With its parameters divided over {_devices(step)} devices"
            found = f" each lacks {format_bytes(_lack(step))}{_how(step)}."
            if step.fits:
                found = f" it fits{_how(step)}: each has {format_bytes(step.used)} at most.{step.warning}"
            sentences.append(f"{way}{found}")
        if not any(step.fits for step in self.steps):
            sentences.append(ways_out(self.steps, [step.micro_batches for step in self.steps]).strip())
        return " ".join(sentences)

    def __str__(self) -> str:
        head = ["device", "of", "M", "recomputed", *CATEGORIES, "together", "fits"]
        rows = [
            [
                _where(step),
                format_bytes(step.room),
                f"{step.micro_batches}",
                step.recomputed or "-",
                *(format_bytes(step.memory[name]) for name in CATEGORIES),
                format_bytes(step.used),
                "yes" if step.fits else f"lacks {format_bytes(_lack(step))}",
            ]
            for step in self.steps
        ]
        return table([head, *rows])


def fits(capture: Capture, cluster: Cluster, batch: int, counts: Sequence[int] = COUNTS) -> Fits:
    """Find for each kind of device whether a step fits: as it is, then in ways that need less memory, until one fits.

    The step is tried in more and more micro-batches, and then, in the largest number, with the fewest recomputed blocks
    with which it fits. If it fits no kind of device in any way, parameters are divided over all devices of the cluster
    except CPUs. The numbers are then those of `counts` that give each of these devices equally many micro-batches, or
    one each. If it doesn't fit in this way either, all ways are tried that `placeto plan` tries, and the best of them
    is kept.

    Args:
        capture: captures the step.
        cluster: the cluster with the devices.
        batch: number of samples of a step.
        counts: numbers of micro-batches to try, the least first.

    Raises:
        CaptureError: the step can't be captured in the first of these ways.
    """
    captured, left_out, steps = cache(capture), dict[int, str](), list[PlannedStep]()

    def graphs(numbers: Iterable[int]) -> Iterator[ComputationGraph]:
        for count in (number for number in numbers if number not in left_out):
            try:
                yield captured(count)
            except CaptureError as refused:
                if not steps:
                    raise
                left_out[count] = str(refused)

    def try_until_it_fits(numbers: Iterable[int], on: Cluster, way: Way) -> None:
        problem = None
        for graph in graphs(numbers):
            problem = PlacementProblem(graph, on)
            steps.append(way(problem, ()))
            if steps[-1].fits or resident_bytes(steps[-1]) > steps[-1].room:
                return
        if problem is not None and (paths := recomputable(problem.graph)):
            steps.append(fewest_blocks(partial(way, problem), paths, steps[-1]))

    for device in _kinds(cluster.devices):

        def alone(problem: PlacementProblem, blocks: tuple[str, ...]) -> PlannedStep:
            return one_device(problem, 0, batch, blocks)

        try_until_it_fits(counts, _one(device), alone)
    computing = tuple(number for number, device in enumerate(cluster.devices) if not device.is_cpu)
    if len(computing) > 1 and not any(step.fits for step in steps):

        def divided(problem: PlacementProblem, blocks: tuple[str, ...]) -> PlannedStep:
            return sharded(problem, computing, 3, batch, blocks)

        numbers = [count for count in counts if count % len(computing) == 0] or [len(computing)]
        try_until_it_fits(numbers, cluster, divided)
        if not any(step.fits for step in steps):
            numbers = [count for count in (*counts, 1) if count not in left_out]
            plans = plans_of(lambda count: PlacementProblem(captured(count), cluster), batch, numbers, 0)
            if plans.best.fits or plans.best.kind not in (Kind.ONE, Kind.FULLY_SHARDED):
                steps.append(plans.best)
    return Fits(tuple(steps), left_out)


def device_of(memory: int) -> Cluster:
    """Return a cluster of one device with `memory` bytes; its speeds are arbitrary, as they change no memory."""
    return _one(Device("device", "device", 1e12, 1e12, memory))


def resident_bytes(step: PlannedStep) -> int:
    """Return the bytes of parameters, gradients and the optimizer's state on the fullest device."""
    result = step.result
    return int(result.problem.resident_bytes[result.placement == step.fullest].sum())


def _one(device: Device) -> Cluster:
    return Cluster("one", (device,), np.ones((1, 1)), np.zeros((1, 1)))


def _lack(step: PlannedStep) -> int:
    return step.used - step.room


def _how(step: PlannedStep) -> str:
    """How the step runs, such as " in 4 micro-batches, recomputing 5 of 22 blocks"; "" for the whole batch without."""
    return step.parts + (f", recomputing {step.recomputed}" if step.recomputed else "")


def _where(step: PlannedStep) -> str:
    if step.kind == Kind.ONE:
        return step.device.kind
    return f"divided over {_devices(step)}" if step.kind == Kind.FULLY_SHARDED else f"{step.kind}, {step.shape}"


def _devices(step: PlannedStep) -> int:
    return 0 if step.plan is None else len(step.plan.used)


def _kinds(devices: Iterable[Device]) -> list[Device]:
    """Return the first device of each kind and memory."""
    found: dict[tuple[str, int], Device] = {}
    for device in devices:
        found.setdefault((device.kind, device.memory), device)
    return list(found.values())


def _named(device: Device) -> str:
    return f"{device.kind} ({format_bytes(device.memory)})"
