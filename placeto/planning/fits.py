"""Whether a training step fits into the memory of a device, if need be with micro-batches, recomputation or sharding.

Nothing is placed, and times don't matter: one device runs the step in the order of the program, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import numpy as np

from placeto.planning.planned_steps import Kind, PlannedStep, WayOut, advice_on_ways_out
from placeto.planning.runnable import Runner
from placeto.planning.short_memory import fewest_blocks
from placeto.planning.single_ways import one_device, sharded
from placeto.planning.variants import COUNTS, Variants, one_each
from placeto.planning.ways import leanest, plans_of
from placeto.planning.ways_out import ways_out
from placeto.plumbing.terminal import table
from placeto.problem.cluster import Cluster, Device
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.recomputation import recomputable
from placeto.problem.units import format_bytes
from placeto.simulator.readings.memory_timeline import CATEGORIES

Way = Callable[[PlacementProblem, tuple[str, ...]], PlannedStep]
"""Makes a way to run the problem of a step that recomputes some blocks."""
_lacks = attrgetter("lacks")


@dataclass(frozen=True)
class Fits:
    """What a step needs on devices of each kind, in each way that was tried; if one way fits a kind, it is the last.

    The ways are one device, all devices with divided parameters, or another way that `placeto plan` tries.
    """

    steps: tuple[PlannedStep, ...]
    left_out: Mapping[int, str]  # numbers of micro-batches that the step can't be split into, and why
    ways_out: tuple[WayOut, ...] = ()  # if nothing fits
    headroom: int = 0  # bytes of each device that stay free

    def advice(self) -> str:
        """Say for each kind of device, in a sentence each, how the step fits, or how much memory is missing."""
        sentences = []
        alone = [step for step in self.steps if step.kind == Kind.ONE]
        for device in _kinds(step.device for step in alone):
            *_, last = on_device = [step for step in alone if step.device == device]
            if last.fits:
                left = format_bytes(-last.lacks)
                warning = "" if self.headroom else last.warning
                sentences.append(f"It fits on {_named(device)}{last.how}, with {left} left.{warning}")
            elif last.resident_bytes > last.room:
                held = format_bytes(last.resident_bytes)
                sentences.append(f"It doesn't fit on {_named(device)}: weights, gradients and optimizer take {held}.")
            else:
                least = min(on_device, key=_lacks)
                sentences.append(
                    f"It doesn't fit on {_named(device)}: it lacks {format_bytes(least.lacks)}{least.how}."
                )
        divided = [step for step in self.steps if step.kind != Kind.ONE]
        if divided:
            step = min(divided, key=_lacks)
            way = f"As {step.kind} ({step.shape})"
            if step.kind == Kind.FULLY_SHARDED:
                way = f"With its parameters divided over {_devices(step)} devices"
            found = f" each lacks {format_bytes(step.lacks)}{step.how}."
            if step.fits:
                warning = "" if self.headroom else step.warning
                found = f" it fits{step.how}: each has {format_bytes(step.used)} at most.{warning}"
            sentences.append(f"{way}{found}")
        if not any(step.fits for step in self.steps):
            sentences.append(advice_on_ways_out(self.steps, self.ways_out, timed=False).strip())
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
                "yes" if step.fits else f"lacks {format_bytes(step.lacks)}",
            ]
            for step in self.steps
        ]
        return table([head, *rows])


def fits(variants: Variants, counts: Sequence[int] = COUNTS) -> Fits:
    """Find for each kind of device whether a step fits: as it is, then in ways that need less memory, until one fits.

    The step is tried in more and more micro-batches, and then, in the largest number, with the fewest recomputed blocks
    with which it fits. If it fits no kind of device in any way, parameters are divided over all devices of the cluster
    except CPUs. The numbers are then those of `counts` that give each of these devices equally many micro-batches, or
    one each. If it doesn't fit in this way either, all ways are tried that `placeto plan` tries, and the best of them
    is kept.

    Args:
        variants: the step.
        counts: numbers of micro-batches to try, the least first.

    Raises:
        CaptureError: the step can't be captured in the first of these ways.
    """
    cluster, steps = variants.cluster, list[PlannedStep]()
    devices = cluster.computing

    def try_until_it_fits(wanted: Iterable[int], way: Way) -> None:
        problem = None
        for problem in variants.wanted(wanted):
            steps.append(way(problem, ()))
            if steps[-1].fits or steps[-1].resident_bytes > steps[-1].room:
                return
        if problem is not None and (blocks := recomputable(problem.graph)):
            steps.append(fewest_blocks(partial(way, problem), blocks))

    def found(left_out: Mapping[int, str], out: tuple[WayOut, ...] = ()) -> Fits:
        return Fits(tuple(steps), left_out, out, variants.headroom)

    def alone(device: int, problem: PlacementProblem, blocks: tuple[str, ...]) -> PlannedStep:
        return one_device(problem, device, blocks)

    for device in _kinds(cluster.devices):
        try_until_it_fits(counts, partial(alone, cluster.devices.index(device)))
    if any(step.fits for step in steps):
        return found(variants.left_out)
    if len(devices) > 1:
        each = one_each(cluster, counts) or [count for count in counts if count % len(devices) == 0]
        try_until_it_fits(each, lambda problem, blocks: sharded(problem, devices, 3, blocks))
        if steps[-1].fits:
            return found(variants.left_out)
        plans = plans_of(variants, (*counts, 1), 0)
        if plans.best.fits or plans.best.kind not in (Kind.ONE, Kind.FULLY_SHARDED):
            steps.append(plans.best)
        return found(plans.left_out, plans.ways_out)
    left_out, best = variants.left_out, min(steps, key=_lacks)
    return found(left_out, ways_out(variants, best, partial(leanest, Runner())))


def device_of(memory: int) -> Cluster:
    """Return a cluster of one device with `memory` bytes; its speeds are arbitrary, as they change no memory."""
    return Cluster("one", (Device("device", "device", 1e12, 1e12, memory),), np.ones((1, 1)), np.zeros((1, 1)))


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
