"""``placeto run``: run a placed step on devices of this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from placeto.cli.common import check_positive, say
from placeto.cli.factory import make
from placeto.cli.graphs import Step, StepOptions, check_step, step_of
from placeto.problem.units import format_bytes, format_us


@dataclass(frozen=True)
class Arguments:
    """Run a placed training step, or inference, on devices of this machine, and compare it with the simulated one.

    FACTORY is as for `placeto capture`, but it is called on the CPU. The placement must be of the graph that is
    captured from it, with the same options. The parameters don't change.
    """

    factory: Annotated[Positional[str], arg(metavar="FACTORY")]
    """package.module:function or file.py:function"""
    placement: Path
    """a placement file, as `placeto place -o` or `placeto tune -o` writes it"""
    devices: Annotated[str, arg(metavar="NAMES")]
    """devices of this machine, as cpu:0,cpu:1,cuda:0, in the order of the cluster's: cpu:i is one core"""
    steps: int = 20
    """how many steps to time, after two that don't count"""
    options: Step = field(default_factory=StepOptions)


def run(arguments: Arguments) -> None:
    """Run, print."""
    from placeto.capture.trace import trace_inference, trace_training
    from placeto.formats.placement import PlacementError, load_placement
    from placeto.problem.fields import within
    from placeto.problem.graph_memory import with_optimizer
    from placeto.runtime.devices import open_devices
    from placeto.runtime.executable import PlacedModule
    from placeto.runtime.steps import filled
    from placeto.runtime.sums import in_lists

    check_positive("--steps", arguments.steps)
    options = arguments.options
    check_step(options)
    file = load_placement(arguments.placement)
    devices = open_devices([name.strip() for name in arguments.devices.split(",") if name.strip()])
    with filled():
        made = make(arguments.factory, options.settings, device="cpu")
    module, inputs, loss, targets = step_of(made, arguments.factory, options)
    how: dict[str, Any] = {"precision": options.precision, "micro_batches": options.micro_batches}
    if options.inference:
        capture, targets = trace_inference(module.eval(), inputs, **how), ()
        graph = capture.graph
    else:
        capture = trace_training(module, inputs, loss, targets=targets, **how)
        graph = with_optimizer(capture.graph, options.optimizer, options.master_weights)
    with within(PlacementError, arguments.placement):
        placement, order, names = file.on(graph, len(devices))
        schedule = in_lists(graph, placement, order)
    step = PlacedModule(module, capture, inputs, targets, schedule, devices)
    values: tuple[Any, ...] = tuple(targets) if isinstance(inputs, Mapping) else (*inputs, *targets)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    resident = graph.param_bytes + graph.state_bytes
    value, peaks = step.peak_bytes(*values, **named)
    step(*values, **named)
    step.step.synchronize()
    times = []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        step(*values, **named)
        step.step.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    median, spread = statistics.median(times), max(times) - min(times)
    simulated = f", simulated {format_us(file.makespan_us)}" if file.makespan_us is not None else ""
    say(f"crossing     {step.step.crossing} values a step")
    say(f"step         {format_us(median)} in the median of {len(times)}, spread {format_us(spread)}{simulated}")
    if not options.inference:
        say(f"loss         {value.item():.6g}")
    for name, device, peak in zip(names, devices, peaks, strict=True):
        peak += int(resident[placement == devices.index(device)].sum())
        expected = f", simulated {format_bytes(file.peak_memory[name])}" if name in file.peak_memory else ""
        say(f"{device.name:<12} {format_bytes(peak)} at most{expected}")
