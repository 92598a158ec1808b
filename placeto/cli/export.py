"""``placeto export``: a placement for other tools."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import UseAppendAction, arg

from placeto.cli.common import (
    CostsText,
    DispatchOption,
    OptionalInt,
    UsageError,
    check_output,
    missing_memory,
    note,
    say,
)
from placeto.cli.graphs import Captured, CaptureOptions, GraphArgument, is_factory
from placeto.cli.report import check_page, simulate_file, write_report
from placeto.problem.units import format_us

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

_NOTES = 5  # lines that say why an export differs from the placement


@dataclass(frozen=True)
class Arguments:
    """Write a placement for other tools.

    device-map: JSON, module -> device, for accelerate and Hugging Face's models. stages: JSON, contiguous pipeline
    stages and where to split, for torch.distributed.pipelining. torch-pipeline: a folder, from which torchrun trains
    the stages and replicas of a placement in micro-batches, in its order. dot: modules coloured by device, for
    graphviz. graphml: ops and tensors, for networkx or Gephi. trace: the schedule, for https://ui.perfetto.dev. html:
    the page that `placeto report` writes.
    """

    graph: GraphArgument
    placement: Path
    """a placement file, as `placeto place -o` writes it"""
    cluster: str
    """a name from `placeto list clusters`, or a cluster file"""
    format: Literal["device-map", "stages", "torch-pipeline", "dot", "graphml", "trace", "html"]
    """what to write"""
    output: Annotated[Path, arg(name="out", aliases=["-o"], metavar="PATH")]
    """the file to write; of torch-pipeline the folder"""
    dispatch: DispatchOption = None
    """which ready op a device runs next: fifo, list or a static order such as priority; the file's if not given"""
    costs: CostsText = "efficiency"
    """how long ops take: efficiency, roofline, or a file of costs"""
    whole: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="MODULE")] = ()
    """a module that a device map or stages must not divide, beside the blocks; may be given several times"""
    stages: OptionalInt = None
    """how many stages; as many as devices if not given"""
    names: Annotated[str, arg(metavar="NAMES")] = ""
    """names of the devices in a device map, as 0,1,cpu or cpu,disk; if not given, numbers, and cpu for CPUs"""
    options: Captured = field(default_factory=CaptureOptions)


def run(arguments: Arguments) -> None:
    """Simulate the placement, write, say what the format's limits cost."""
    if arguments.format != "torch-pipeline" or not arguments.output.is_dir():
        check_output("--out", arguments.output)
    name, file, schedule = simulate_file(
        arguments.graph,
        arguments.placement,
        arguments.cluster,
        arguments.dispatch,
        arguments.costs,
        arguments.options,
    )
    problem, path = schedule.problem, arguments.output
    graph = problem.graph
    if arguments.format == "device-map":
        _device_map(schedule, arguments)
    elif arguments.format == "stages":
        _stages(schedule, arguments)
    elif arguments.format == "torch-pipeline":
        _torch_pipeline(schedule, arguments)
    elif arguments.format == "dot":
        from placeto.formats.exports import modules_dot

        path.write_text(modules_dot(schedule))
        say(f"dot          {path}: draw it with dot -Tsvg {path} -o {path.stem}.svg")
    elif arguments.format == "graphml":
        from placeto.formats.exports import save_graphml

        save_graphml(schedule, path)
        say(f"graphml      {path}: {graph.num_ops} ops, {graph.num_edges} edges")
    elif arguments.format == "trace":
        from placeto.formats.chrome_trace import save_chrome_trace

        save_chrome_trace(schedule, path)
        say(f"trace        {path}: open it at https://ui.perfetto.dev")
    else:
        check_page("--out", path)
        write_report(schedule, problem, path, name, file.placer, file.whole_modules)


def _device_map(schedule: Schedule, arguments: Arguments) -> None:
    from placeto.formats.exports import device_map

    devices = schedule.problem.num_devices
    names: list[str] = [name.strip() for name in arguments.names.split(",") if name.strip()]
    if names and len(names) != devices:
        raise UsageError(f"--names: the cluster has {devices} devices, {len(names)} names are given")
    made = device_map(schedule, arguments.whole)
    said = made.named(names)
    arguments.output.write_text(json.dumps(said, indent=1) + "\n")
    say(f"device map   {arguments.output}: {len(said)} modules")
    _cost("the placement", schedule, schedule)
    _cost("whole modules", made.whole, schedule)
    _cost("in program order", made.in_order, schedule)
    _notes([*made.notes, *filter(None, [made.offload_note(said)])])


def _stages(schedule: Schedule, arguments: Arguments) -> None:
    from placeto.formats.exports import ExportWarning, pipeline_stages

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ExportWarning)
        made = pipeline_stages(schedule, arguments.stages, arguments.whole)
    names = schedule.problem.cluster.device_names
    arguments.output.write_text(json.dumps(made.described(names), indent=1) + "\n")
    say(f"stages       {arguments.output}: split at {', '.join(made.split_points) or 'nothing'}")
    for number, (modules, us) in enumerate(zip(made.modules, made.stage_us, strict=True)):
        say(f"{names[number]:<12} {format_us(float(us)):>10}, {modules[0]} to {modules[-1]}")
    say(f"agreement    {made.agreement:.1%} of the time is divided as the placement divides it")
    _notes([str(warning.message) for warning in caught])


def _torch_pipeline(schedule: Schedule, arguments: Arguments) -> None:
    from placeto.cli.factory import settings_of
    from placeto.formats.exports import save_torch_pipeline, torch_pipeline

    options, folder, names = arguments.options, arguments.output, schedule.problem.cluster.device_names
    made = torch_pipeline(schedule)
    factory = arguments.graph if is_factory(arguments.graph) else None
    kept = (folder / "run.py").exists()
    save_torch_pipeline(made, folder, factory, settings_of(options.settings), options.loss)
    devices, modules = made.stages.devices, made.stages.modules
    micro_batches = sum(map(len, made.stages.micro_batches))
    say(f"pipeline     {folder}: stages {len(modules)}, replicas {len(devices)}, micro-batches {micro_batches}")
    for number, (own, at) in enumerate(zip(modules, zip(*devices, strict=True), strict=True)):
        where = ", ".join(names[device] for device in at)
        say(f"stage {number:<6} {where}: {own[0]}{f' to {own[-1]}' if len(own) > 1 else ''}")
    whole, free = made.order.schedule.makespan_us, schedule.makespan_us
    say(f"simulated    {format_us(free)} by ops, {format_us(whole)} as torch runs it, in whole chunks")
    say(f"run          torchrun --standalone --nproc-per-node {made.num_ranks} {folder / 'run.py'}")
    if made.order.moved > 0.0:
        note(
            f"{made.order.moved:.1%} of the time is moved to where torch computes it: to the stage of its forward pass"
        )
    if missing := missing_memory(made.order.schedule):
        note(f"as torch runs it, it doesn't fit in the memory of {schedule.problem.cluster.name}: {missing} too much")
    if "recomputation" in schedule.problem.graph.passes:
        note("torch traces the model without its activation checkpoints: it takes more memory, and less time")
    if kept:
        note(f"{folder / 'run.py'} was there already and stays as it is; remove it for a new one")
    if factory is None:
        note(f"{arguments.graph} is no function that makes the model: give run.py one, --factory file.py:function")
    if options.precision != "fp32":
        note(f"run.py trains the model as the factory makes it, not in {options.precision}: change it there")


def _notes(sentences: Sequence[str]) -> None:
    for sentence in sentences[:_NOTES]:
        note(sentence)
    if len(sentences) > _NOTES:
        note(f"and {len(sentences) - _NOTES} more such reasons")


def _cost(what: str, schedule: Schedule, free: Schedule) -> None:
    from placeto.evaluation.summary import ratio

    us = schedule.makespan_us
    say(f"{what:<17} {format_us(us):>10}, {ratio(us, free.makespan_us):.3f} times the placement's")
