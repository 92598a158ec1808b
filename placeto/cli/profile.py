"""``placeto profile``: measure how long the ops of models take on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from placeto.cli.shared.common import say
from placeto.cli.shared.factory import parted, user_step
from placeto.cli.shared.graphs import check_step
from placeto.cli.shared.options import Devices, JsonOut, OptionalJson, Trace, TraceOptions
from placeto.errors import UsageError
from placeto.problem.checks import Positive
from placeto.problem.units import format_us

if TYPE_CHECKING:
    from placeto.runtime.measuring.profiling import Profile
    from placeto.runtime.real_steps import RealStep


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure how long the ops of models take on this machine, and write a file of costs for `placeto place --costs`.

    FACTORY is as for `placeto capture`, but it is called on the CPU, and the step that it returns is run. The time of
    an op that wasn't measured is predicted from measured ops of its type, so give several models if you can.
    """

    factories: Annotated[Positional[tuple[str, ...]], arg(metavar="FACTORY ...")]
    """package.module:function or file.py:function, one or several"""
    out: JsonOut
    """the file of costs to write, .json or .json.gz"""
    devices: Devices = ("cpu:0",)
    cluster_out: OptionalJson = None
    """write these devices, with measured times of transfers between them, to this cluster file"""
    processes: bool = False
    """measure transfers between processes by gloo, which `placeto run --plan` uses on cores, not between threads"""
    seconds: Positive = 20.0
    """how long to run the steps; at least three passes are made"""
    options: Trace


def run(arguments: Arguments) -> None:
    """Measure, write the files, and say how far off predictions are."""
    if not arguments.factories:
        raise UsageError("FACTORY: at least one is needed, package.module:function or file.py:function")
    from placeto.problem.cluster import save_cluster
    from placeto.problem.costs.profiled import save_profiled
    from placeto.runtime.local_devices import open_devices
    from placeto.runtime.measuring.profiling import profile

    devices = open_devices(arguments.devices)
    steps = [real_step_of(factory, arguments.options) for factory in arguments.factories]
    name = (arguments.cluster_out or arguments.out).name.split(".")[0]
    profiled = profile(steps, devices, arguments.seconds, name, arguments.processes)
    save_profiled(profiled.costs, arguments.out)
    say(f"costs        {arguments.out}: {len(profiled.costs.ops)} signatures")
    if arguments.cluster_out is not None:
        save_cluster(profiled.cluster, arguments.cluster_out)
        say(f"cluster      {arguments.cluster_out}: {', '.join(device.name for device in profiled.cluster.devices)}")
    say(_table(profiled))


def real_step_of(factory: str, options: TraceOptions) -> RealStep:
    """Call a factory on the CPU, and return its step, whose tensors hold numbers.

    Raises:
        UsageError: there is no such function, or an option is invalid.
        CaptureError, RunError: the step can't be captured or run.
    """
    from placeto.runtime.real_steps import real_inference, real_training

    check_step(options)
    _, module, inputs, loss, targets, _ = user_step(factory, options, "cpu")
    how: dict[str, Any] = {"precision": options.precision, "micro_batches": options.micro_batches}
    how["name"] = parted(factory)[1]
    if options.inference:
        return real_inference(module, inputs, **how)
    return real_training(module, inputs, loss, targets=targets, **how)


def _table(profiled: Profile) -> str:
    lines = []
    for step in profiled.costs.steps:
        error = (
            "" if step["held_out_error"] is None else f", {step['held_out_error']:.1%} off in the median if held out"
        )
        ratio = step["predicted_us"] / step["measured_us"]
        lines.append(f"{step['name']} on {step['kind']}: {step['signatures']} signatures{error}")
        lines.append(f"  step       {format_us(step['measured_us'])}, predicted {ratio:.3f} of it")
        if step["eager_us"]:
            lines.append(f"  eager      {format_us(step['eager_us'])}")
    for device in profiled.cluster.devices:
        lines.append(f"{device.name}: overhead {device.overhead_us:.2f} us an op")
    return "\n".join(lines)
