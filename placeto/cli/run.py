"""``placeto run``: run a placed model on devices of this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from placeto.cli.shared import options as opt
from placeto.cli.shared.common import note, say
from placeto.cli.shared.factory import user_step
from placeto.cli.shared.graphs import as_planned, check_replicas, check_step
from placeto.errors import UsageError
from placeto.problem.units import format_bytes, format_us

if TYPE_CHECKING:
    from placeto.formats.plan import PlanFile
    from placeto.runtime.local_devices import LocalDevice

_NOT_COUNTED = 2  # first steps, which are slower


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Run a placed training step, or inference, on devices of this machine, and compare it with the simulated one.

    FACTORY is as for `placeto capture`, but it is called on the CPU. The placement must have been made for the same
    FACTORY with the same options. With --placement, Placeto's own runtime runs the step, and the parameters don't
    change. With --plan, torchrun trains the model, with one process for each device: a pipeline by the program that
    `placeto export --format torch-pipeline` writes, and replicas, also sharded ones and tensor-parallel groups, by that
    of `--format torch-replicas`.
    """

    factory: opt.Factory
    devices: opt.Names
    """devices of this machine, such as cpu:0,cpu:1,cuda:0, in the order of those of the cluster; cpu:i is one core"""
    placement: opt.OptionalPath = None
    """a placement file, as `placeto place -o` or `placeto tune -o` writes it"""
    plan: opt.OptionalPath = None
    """in place of --placement, replicas or a pipeline that torch runs, from `placeto plan --runnable-by torch -o` or
    `placeto place --placer torch-pipeline -o`"""
    cluster: opt.OptionalText = None
    """with --plan, the cluster of the simulation; that of the placement if not given"""
    costs: Annotated[str, arg(metavar="NAME|FILE")] = "efficiency"
    """with --plan, how long ops take in the simulation: efficiency, roofline, or a file of costs"""
    check: bool = False
    """with --plan, also train the whole model in each process, and say by how much gradients and losses differ"""
    steps: opt.Counted = 20
    """how many steps to time, after two that don't count"""
    options: opt.Step


def run(arguments: Arguments) -> None:
    """Run the step and print how long it takes."""
    if (arguments.placement is None) == (arguments.plan is None):
        raise UsageError("give one of --placement and --plan")
    check_step(arguments.options)
    if arguments.plan is not None:
        _run_plan(arguments, arguments.plan)
        return
    opt.refuse(arguments, ("cluster", "costs", "check"), "goes with --plan")
    assert arguments.placement is not None
    _run_placement(arguments, arguments.placement)


def _run_plan(arguments: Arguments, plan: Path) -> None:
    """Export a plan as a program, run it by torchrun, and print how long its steps take."""
    from placeto.cli.report import PlacedArguments, note_of_memory, note_other_time, simulate_file
    from placeto.cli.shared.factory import settings_of
    from placeto.formats.exports import save_torch_pipeline, torch_pipeline
    from placeto.formats.placement import load_placement
    from placeto.formats.plan import load_plan
    from placeto.planning.planned_steps import Kind
    from placeto.runtime.local_devices import open_devices

    options, way = arguments.options, load_plan(plan)
    if way is not None and way.kind == Kind.FREE:
        raise UsageError(f"{plan}: its way is a {way.kind}, which torch can't run: give the file as --placement {plan}")
    if way is not None and way.plan is not None and len(way.plan["stages"]) == 1:
        _run_replicas(arguments, plan, way)
        return
    if way is not None and way.micro_batches == 1:
        raise UsageError(
            f"{plan}: its way is {way.kind}, which is no pipeline of micro-batches: run it with {way.run_by}, or "
            "make a pipeline with `placeto place --placer torch-pipeline --micro-batches 4 -o`"
        )
    cluster = arguments.cluster or load_placement(plan).cluster
    if cluster is None:
        raise UsageError(f"{plan} doesn't say for which cluster it is: give --cluster")
    devices = open_devices(arguments.devices)
    given = PlacedArguments(
        graph=arguments.factory, placement=plan, cluster=cluster, costs=arguments.costs, options=_captured(options)
    )
    _, _, schedule = simulate_file(given)
    pipeline = torch_pipeline(schedule)
    if len(devices) != pipeline.num_ranks:
        used = f"{pipeline.num_ranks} {'device' if pipeline.num_ranks == 1 else 'devices'}"
        raise UsageError(f"--devices {','.join(arguments.devices)}: the plan runs on {used}, not on {len(devices)}")
    note_other_time(plan, schedule, pipeline.step.makespan_us)
    note_of_memory(pipeline.step, pipeline.order.plan, schedule.problem.graph)
    with TemporaryDirectory() as folder:
        save_torch_pipeline(pipeline, Path(folder), arguments.factory, settings_of(options.settings), options.loss)
        _run_program(Path(folder), devices, arguments, pipeline.step.makespan_us)


def _run_replicas(arguments: Arguments, plan: Path, way: PlanFile) -> None:
    """Export replicas as a program, run it by torchrun, and print how long its steps take."""
    from placeto.cli.shared.factory import settings_of
    from placeto.errors import PlacementError, PlanError
    from placeto.formats.exports import save_torch_replicas
    from placeto.problem.cluster import load_cluster
    from placeto.problem.costs import load_costs
    from placeto.problem.messages import within
    from placeto.runtime.local_devices import open_devices

    options = as_planned(plan, arguments.factory, None, arguments.options)
    check_replicas(plan, way, arguments.factory, _captured(options))
    if arguments.cluster is not None:
        with within(PlacementError, plan):
            way.check_cluster(load_cluster(arguments.cluster))
    planned_with = None if way.placement is None else way.placement.costs
    if arguments.costs not in ("efficiency", planned_with) and load_costs(arguments.costs).name != planned_with:
        note(f"the simulated time is that of {plan}: `placeto plan` simulates with other --costs")
    with TemporaryDirectory() as folder:
        with within(PlanError, plan):
            how = settings_of(options.settings), options.loss
            ranks = save_torch_replicas(way, Path(folder), arguments.factory, *how)
        devices = open_devices(arguments.devices)
        if len(devices) != ranks:
            used = f"{ranks} {'device' if ranks == 1 else 'devices'}"
            raise UsageError(f"--devices {','.join(arguments.devices)}: the plan runs on {used}, not on {len(devices)}")
        _run_program(Path(folder), devices, arguments, float(way.step_us))


def _captured(options: opt.StepOptions) -> opt.CaptureOptions:
    """How a step is captured that is run so."""
    return opt.CaptureOptions(**{field.name: getattr(options, field.name) for field in fields(opt.StepOptions)})


def _run_program(folder: Path, devices: list[LocalDevice], arguments: Arguments, simulated_us: float) -> None:
    """Run an exported program by torchrun, and print how long its steps take."""
    from placeto.runtime.torchrun import torchrun

    if arguments.options.precision != "fp32":
        note(f"the model is trained as the factory makes it, not in {arguments.options.precision}")
    times = torchrun(folder, devices, _NOT_COUNTED + arguments.steps, check=arguments.check, each=say)
    counted = times[_NOT_COUNTED:]
    median, spread = statistics.median(counted), max(counted) - min(counted)
    took = f"{format_us(median)} in the median of {len(counted)}, spread {format_us(spread)}"
    say(f"step         {took}, simulated {format_us(simulated_us)}")


def _run_placement(arguments: Arguments, path: Path) -> None:
    """Run a placement by Placeto's own runtime; print the time of a step, the loss, and the memory of each device."""
    from placeto.capture.trace import trace_inference, trace_training
    from placeto.errors import PlacementError
    from placeto.formats.placement import load_placement
    from placeto.problem.graph.graph_memory import with_optimizer
    from placeto.problem.messages import within
    from placeto.runtime.executable import PlacedModule
    from placeto.runtime.local_devices import open_devices
    from placeto.runtime.transport.sums import in_lists

    options, file = as_planned(path, arguments.factory, None, arguments.options), load_placement(path)
    if file.plan is not None and file.plan.get("recomputed"):
        raise UsageError(
            f"{path}: it recomputes modules for the backward pass, which Placeto's own runtime can't: give a pipeline "
            f"as --plan {path}; else let the FACTORY call them by torch.utils.checkpoint, and place again"
        )
    if file.width > 1:
        raise UsageError(
            f"{path}: its devices are tensor-parallel groups of {file.width} boards, and Placeto's own runtime has "
            f"none: give replicas as --plan {path}, and export a pipeline for torchtitan or megatron"
        )
    devices = open_devices(arguments.devices)
    _, module, inputs, loss, targets, _ = user_step(arguments.factory, options, "cpu")
    how: dict[str, Any] = {"precision": options.precision, "micro_batches": options.micro_batches}
    if options.inference:
        capture, targets = trace_inference(module.eval(), inputs, **how), ()
        graph = capture.graph
    else:
        capture = trace_training(module, inputs, loss, targets=targets, **how)
        graph = with_optimizer(capture.graph, options.optimizer, options.master_weights)
    with within(PlacementError, path):
        placement, order, names = file.on(graph, len(devices))
        schedule = in_lists(graph, placement, order)
    step = PlacedModule(capture, inputs, targets, schedule, devices)
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
