"""Profile this machine with given steps: a cost model for their ops, and a cluster of its devices.

Of each kind of device, the first one is measured. `placeto.runtime.measuring.measure` says how.

A device's overhead is the time of the calls that are no ops of the graph, such as views and constants, as a mean per
op. On a GPU it is how much longer the steps take than their ops together. If the GPU is behind the host there, views
take no time. If the host is behind, as in steps of many small ops, they take all of their time.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placeto.errors import RunError
from placeto.problem.cluster import Cluster, Device
from placeto.problem.costs.profiled import OpCost, Profiled, torch_version
from placeto.problem.problem import PlacementProblem
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.measuring.fitting import Sample, fit, held_out
from placeto.runtime.measuring.measure import Measured, measure
from placeto.runtime.real_steps import RealStep
from placeto.runtime.transport.transfers import matrices, peaks


@dataclass(frozen=True, eq=False)
class Profile:
    """The costs and the cluster that were measured, with the measurements."""

    costs: Profiled
    cluster: Cluster
    measured: tuple[Measured, ...]  # of each step on each kind of device


def profile(
    steps: Sequence[RealStep],
    devices: Sequence[LocalDevice],
    seconds: float,
    name: str = "mine",
    processes: bool = False,
) -> Profile:
    """Measure steps on devices.

    Args:
        steps: the steps whose ops are measured, each in its turn.
        devices: the devices of the cluster.
        seconds: how long the passes over the steps take, all together; at least three are made.
        name: the name of the cluster.
        processes: whether transfers are those of `torch.distributed` between processes, not those between threads; then
            the costs also have what torch takes for a chunk of a pipeline, and for sums of gradients.

    Raises:
        RunError: a step fails on a device; or `processes` is set, and a device is no core, or a process fails.
    """
    first = {device.kind: device for device in reversed(devices)}
    measured = {kind: measure(steps, device, seconds / len(first)) for kind, device in first.items()}
    samples = {kind: _samples(values) for kind, values in measured.items()}
    for kind, values in samples.items():
        if not values:
            raise RunError(f"{first[kind].name}: none of the steps has an op that runs there")
    fits = {kind: fit(values) for kind, values in samples.items()}
    if processes:
        from placeto.runtime.transport.process_links import process_links  # torch's pipelines take seconds to import

        bandwidth, latency_us, more = process_links(devices)
        fits = {kind: {**values, **more} for kind, values in fits.items()}
    else:
        bandwidth, latency_us = matrices(devices)
    costs = Profiled(torch_version(), _machine(), _costs(samples), fits)
    overhead_us = {kind: _overhead_us(values) for kind, values in measured.items()}
    cluster = _cluster(devices, overhead_us, name, bandwidth, latency_us)
    every = tuple(run for values in measured.values() for run in values)
    rows = tuple(_row(run, costs, cluster, held_out(samples[run.device.kind])) for run in every)
    return Profile(Profiled(costs.torch, costs.machine, costs.ops, fits, rows), cluster, every)


def _samples(measured: Sequence[Measured]) -> list[Sample]:
    """Return each signature with the mean time of all calls that have it."""
    times: dict[str, list[float]] = {}
    facts: dict[str, tuple[str, float, float]] = {}
    for run in measured:
        graph, ops = run.step.capture.graph, run.step.measurable
        for node, us in run.by_node().items():
            if (op := ops.get(node)) is not None:
                times.setdefault(graph.signatures[op], []).append(us)
                facts[graph.signatures[op]] = (
                    graph.op_types[op],
                    float(graph.flops[op]),
                    float(graph.bytes_accessed[op]),
                )
    means = {signature: max(float(np.mean(times_us)), 1e-3) for signature, times_us in times.items()}
    return [Sample(signature, *facts[signature], mean) for signature, mean in means.items()]


def _overhead_us(measured: Sequence[Measured]) -> float:
    """Return the microseconds of all calls that are no ops of a graph, divided by the number of ops."""
    beside, ops = 0.0, 0
    for run in measured:
        us = run.by_node()
        in_ops = [time for node, time in us.items() if node in run.step.measurable]
        beside += (sum(us.values()) if run.device.is_cpu else run.step_us) - sum(in_ops)
        ops += len(in_ops)
    return max(beside, 0.0) / max(ops, 1)


def _costs(samples: dict[str, list[Sample]]) -> tuple[OpCost, ...]:
    """Return each signature with its time on each kind of device where it was measured."""
    costs: dict[str, OpCost] = {}
    for kind, samples_there in samples.items():
        for sample in samples_there:
            times = dict(costs[sample.signature].time_us) if sample.signature in costs else {}
            costs[sample.signature] = OpCost(*sample[:4], {**times, kind: sample.time_us})
    return tuple(costs.values())


def _cluster(
    devices: Sequence[LocalDevice],
    overhead_us: dict[str, float],
    name: str,
    bandwidth: np.ndarray,
    latency_us: np.ndarray,
) -> Cluster:
    described = []
    for device in devices:
        flops, of_memory = peaks(device)
        described.append(Device(device.name, device.kind, flops, of_memory, device.memory, overhead_us[device.kind]))
    return Cluster(name, tuple(described), bandwidth, latency_us)


def _row(measured: Measured, costs: Profiled, cluster: Cluster, predicted: dict[str, float]) -> dict[str, Any]:
    """Return a row that compares a step with its predictions.

    The simulator predicts the time of the step on one device, and fits predict the times of signatures held out.
    """
    graph, kind = measured.step.capture.graph, measured.device.kind
    device = next(device for device in cluster.devices if device.kind == kind)
    alone = Cluster(cluster.name, (device,), np.ones((1, 1)), np.zeros((1, 1)))
    took = {op.signature: op.time_us[kind] for op in costs.ops if kind in op.time_us}
    signatures = sorted({signature for signature in graph.signatures if signature in took and signature in predicted})
    errors = [abs(predicted[signature] / took[signature] - 1) for signature in signatures]
    return {
        "name": measured.step.name,
        "kind": kind,
        "signatures": len(signatures),
        "held_out_error": float(np.median(errors)) if errors else None,
        "predicted_us": float(PlacementProblem(graph, alone, costs).single_device_us),
        "measured_us": measured.step_us,
        "eager_us": measured.eager_us,
    }


def _machine() -> str:
    return f"{platform.processor() or platform.machine()}, {platform.system()}"
