"""``placeto tune``: find the placement that is fastest when it is run on devices of this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from placeto.cli.shared.common import say
from placeto.cli.shared.options import Counted, Devices, Factory, OptionalJsonOut, OptionalPath, Seed, Step
from placeto.errors import UsageError
from placeto.problem.checks import Positive
from placeto.problem.units import format_us


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Find the placement of a model that is fastest when it is run on devices of this machine.

    In each round Placeto places the model by measured times of its ops, runs the best placements, and corrects the
    times. FACTORY is as for `placeto capture`, but it is called on the CPU, and the step that it returns is run. By the
    last measurement, the result is never slower than one device.
    """

    factory: Factory
    devices: Devices
    minutes: Positive = 1.0
    """how long all of it may take"""
    count: Counted = 4
    """how many placements to run in a round, in addition to one device"""
    out: OptionalJsonOut = None
    """write the placement to this .json file, for `placeto run`"""
    logs: OptionalPath = None
    """write tensorboard curves of the rounds to this folder"""
    seed: Seed = 0
    options: Step


def run(arguments: Arguments) -> None:
    """Tune, print a row for each placement that is run, and write the best placement."""
    from placeto.cli.profile import real_step_of
    from placeto.formats.placement import save_placement
    from placeto.placing import tuned
    from placeto.problem.graph.graph_memory import with_optimizer
    from placeto.runtime.local_devices import open_devices
    from placeto.runtime.measuring.tuning import Round
    from placeto.training.curves import Curves

    devices = open_devices(arguments.devices)
    if len(devices) < 2:
        raise UsageError("--devices: at least two are needed, as cpu:0,cpu:1")
    options = arguments.options
    step = real_step_of(arguments.factory, options)
    if not options.inference:
        part = with_optimizer(step.capture.step.micro_batch, options.optimizer, options.master_weights)
        step = replace(step, capture=replace(step.capture, step=replace(step.capture.step, micro_batch=part)))
    say(f"{'round':>5}  {'placement':<12} {'simulated':>10} {'measured':>10} {'spread':>9}  of one device")

    with Curves(None if arguments.logs is None else str(arguments.logs)) as curves:

        def report(tuning_round: Round) -> None:
            for candidate in tuning_round.candidates:
                name = candidate.result.placer or "one device"
                us = (candidate.result.makespan_us, candidate.measured_us, candidate.spread_us)
                cells = [f"{format_us(value):>{width}}" for value, width in zip(us, (10, 10, 9), strict=True)]
                share = candidate.measured_us / tuning_round.one_device_us
                say(f"{tuning_round.number:>5}  {name:<12} {' '.join(cells)}  {share:.3f}")
            sys.stdout.flush()
            best = tuning_round.candidates[0]
            numbers = {
                "tune/measured_us": best.measured_us,
                "tune/simulated_us": best.result.makespan_us,
                "tune/of_one_device": best.measured_us / tuning_round.one_device_us,
            }
            curves.numbers(numbers, tuning_round.number)

        result = tuned(step, devices, 60.0 * arguments.minutes, arguments.count, arguments.seed, report)
    if arguments.out is not None:
        save_placement(result.result, arguments.out)
    share = result.measured_us / result.one_device_us
    say(
        f"best         {format_us(result.measured_us)}, one device {format_us(result.one_device_us)}: {share:.3f} of it"
    )
