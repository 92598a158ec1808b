"""Whether a training step fits into the memory of a device, if need be with micro-batches, checkpoints or sharding.

Nothing is placed, and times don't matter: one device runs the step in the order of the program, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeto.planning.numbers import COUNTS
from placeto.problem.cluster import Cluster, Device
from placeto.problem.problem import PlacementProblem
from placeto.problem.units import format_bytes
from placeto.simulator.memory_timeline import CATEGORIES, peak_by_category
from placeto.simulator.replica_step import replicated
from placeto.simulator.schedule import Schedule, simulate
from placeto.terminal import table

if TYPE_CHECKING:
    from placeto.problem.graph import ComputationGraph

Capture = Callable[[int, bool], "ComputationGraph"]
"""Captures the step, given the number of micro-batches and whether activations are checkpointed."""


@dataclass(frozen=True)
class Need:
    """What one device holds at the moment when it holds most."""

    device: Device
    devices: int  # how many share the parameters, as in stage 3 of ZeRO; 1 = one device has all
    micro_batches: int
    checkpointed: bool
    memory: Mapping[str, int]  # bytes by `CATEGORIES`, at the moment when their sum is largest
    resident: int  # bytes of parameters, gradients and the optimizer's state

    @property
    def used(self) -> int:
        """Bytes that the device holds at that moment."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether the device has enough memory for `used`."""
        return self.used <= self.device.memory

    @property
    def how(self) -> str:
        """How the step runs, such as " in 4 micro-batches with checkpointing"; "" for the whole batch without."""
        parts = "" if self.micro_batches == 1 else f" in {self.micro_batches} micro-batches"
        return parts + (" with checkpointing" if self.checkpointed else "")


@dataclass(frozen=True)
class Fits:
    """What a step needs on devices of each kind, in each way that was tried; if one way fits a kind, it is the last."""

    needs: tuple[Need, ...]
    left_out: Mapping[int, str]  # numbers of micro-batches that the step can't be split into, and why

    def advice(self) -> str:
        """Say for each kind of device, in a sentence each, how the step fits, or how much memory is missing."""
        told = []
        for device in _kinds(need.device for need in self.needs if need.devices == 1):
            *_, last = own = [need for need in self.needs if need.device == device and need.devices == 1]
            least = min(own, key=lambda need: need.used)
            if last.fits:
                left = format_bytes(device.memory - last.used)
                told.append(f"It fits on {_named(device)}{last.how}, with {left} left.")
            elif last.resident > device.memory:
                held = format_bytes(last.resident)
                told.append(f"It doesn't fit on {_named(device)}: weights, gradients and optimizer take {held}.")
            else:
                lacks = format_bytes(least.used - device.memory)
                told.append(f"It doesn't fit on {_named(device)}: it lacks {lacks}{least.how}.")
        divided = [need for need in self.needs if need.devices > 1]
        if divided and divided[-1].fits:
            need = divided[-1]
            told.append(
                f"With its parameters divided over {need.devices} devices it fits{need.how}: each has "
                f"{format_bytes(need.used)} at most."
            )
        elif divided:
            need = min(divided, key=lambda need: need.used - need.device.memory)
            lacks = format_bytes(need.used - need.device.memory)
            told.append(f"With its parameters divided over {need.devices} devices each lacks {lacks}{need.how}.")
        return " ".join(told)

    def __str__(self) -> str:
        head = ["device", "of", "M", "checkpoints", *CATEGORIES, "together", "fits"]
        rows = [
            [
                need.device.kind if need.devices == 1 else f"divided over {need.devices}",
                format_bytes(need.device.memory),
                f"{need.micro_batches}",
                "yes" if need.checkpointed else "no",
                *(format_bytes(need.memory[name]) for name in CATEGORIES),
                format_bytes(need.used),
                "yes" if need.fits else f"lacks {format_bytes(need.used - need.device.memory)}",
            ]
            for need in self.needs
        ]
        return table([head, *rows])


def fits(
    capture: Capture, cluster: Cluster, counts: Sequence[int] = COUNTS, checkpointing: Sequence[bool] = (False,)
) -> Fits:
    """Find for each kind of device whether a step fits: as it is, then in ways that need less memory, until one fits.

    If the step fits no kind of device in any way, parameters are divided over all devices of the cluster except CPUs.
    Each of these devices then has one micro-batch.

    Args:
        capture: captures the step.
        cluster: the cluster with the devices.
        counts: numbers of micro-batches to try, the least first.
        checkpointing: for each number, whether activations are checkpointed: the values to try, in order.

    Raises:
        CaptureError: the step can't be captured in the first of these ways.
    """
    from placeto.capture.errors import CaptureError

    graphs: dict[tuple[int, bool], ComputationGraph] = {}
    left_out: dict[int, str] = {}

    def graphs_of(numbers: Sequence[int]) -> Iterator[tuple[int, bool, ComputationGraph]]:
        for count in (number for number in numbers if number not in left_out):
            for checkpointed in checkpointing:
                try:
                    if (count, checkpointed) not in graphs:
                        graphs[count, checkpointed] = capture(count, checkpointed)
                except CaptureError as refused:
                    if not graphs:
                        raise
                    left_out[count] = str(refused)
                    break
                yield count, checkpointed, graphs[count, checkpointed]

    needs: list[Need] = []
    for device in _kinds(cluster.devices):
        for need in (_alone(device, *each) for each in graphs_of(counts)):
            needs.append(need)
            if need.fits or need.resident > device.memory:
                break
    computing = [number for number, device in enumerate(cluster.devices) if not device.is_cpu]
    if len(computing) > 1 and not any(need.fits for need in needs):
        for each in graphs_of([len(computing)]):
            needs.append(_divided(cluster, computing, *each))
            if needs[-1].fits:
                break
    return Fits(tuple(needs), left_out)


def device_of(memory: int) -> Cluster:
    """Return a cluster of one device with `memory` bytes; its speeds are arbitrary, as they change no memory."""
    return _one(Device("device", "device", 1e12, 1e12, memory))


def _one(device: Device) -> Cluster:
    return Cluster("one", (device,), np.ones((1, 1)), np.zeros((1, 1)))


def _alone(device: Device, count: int, checkpointed: bool, graph: ComputationGraph) -> Need:
    schedule = simulate(PlacementProblem(graph, _one(device)), np.zeros(graph.num_ops, np.int64))
    return Need(device, 1, count, checkpointed, peak_by_category(schedule, 0), _resident(schedule, 0))


def _divided(cluster: Cluster, devices: Sequence[int], count: int, checkpointed: bool, graph: ComputationGraph) -> Need:
    """Return the need of the device with the least memory left, if `devices` share the parameters."""
    turns = list(devices) * (count // len(devices))
    schedule = simulate(*replicated(PlacementProblem(graph, cluster), turns, 3))
    lacks = schedule.peak_memory - cluster.memory
    fullest = max(devices, key=lambda device: int(lacks[device]))
    memory, resident = peak_by_category(schedule, fullest), _resident(schedule, fullest)
    return Need(cluster.devices[fullest], len(devices), count, checkpointed, memory, resident)


def _resident(schedule: Schedule, device: int) -> int:
    return int(schedule.problem.resident_bytes[schedule.placement == device].sum())


def _kinds(devices: Iterable[Device]) -> list[Device]:
    """Return the first device of each kind and memory."""
    found: dict[tuple[str, int], Device] = {}
    for device in devices:
        found.setdefault((device.kind, device.memory), device)
    return list(found.values())


def _named(device: Device) -> str:
    return f"{device.kind} ({format_bytes(device.memory)})"
