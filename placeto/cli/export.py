"""``placeto export``: write a placement for other tools: device maps, stages, graphs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from placeto.cli.report import PlacedArguments, note_of_memory, note_other_time, simulate_file
from placeto.cli.shared.common import find_cluster, note, note_memory, say
from placeto.cli.shared.graphs import as_planned, check_replicas, is_factory
from placeto.cli.shared.options import Modules, Names, WritablePath, refuse
from placeto.errors import UsageError
from placeto.problem.checks import checked
from placeto.problem.files import write_text
from placeto.problem.units import format_us

if TYPE_CHECKING:
    from placeto.formats.exports.whole_layers import WholeLayers
    from placeto.simulator.schedule import Schedule

_FOLDERS = "torch-pipeline", "torch-replicas", "torchtitan"
_TRAIN = "torchtitan", "megatron"
_NOTES = 5  # lines that say why an export differs from the placement


@dataclass(frozen=True, kw_only=True)
class Arguments(PlacedArguments):
    """Write a placement for other tools.

    - device-map: JSON, the device of each module, for accelerate and models of Hugging Face.
    - torch-pipeline: a folder from which torchrun trains the stages and replicas of a placement in micro-batches.
    - torch-replicas: the same for a plan file whose way is replicas: DDP, ZeRO, FSDP, tensor-parallel groups.
    - torchtitan: a folder with the same for torchtitan, in whole layers.
    - megatron, vllm, llama.cpp: a shell script with the arguments that give each device its layers.
    - exo: JSON, the layers of each node.
    - dot: modules coloured by device, for graphviz.
    - graphml: ops and tensors, for networkx or Gephi.
    """

    format: Literal[
        "device-map",
        "stages",
        "torch-pipeline",
        "torch-replicas",
        "torchtitan",
        "megatron",
        "vllm",
        "llama.cpp",
        "exo",
        "dot",
        "graphml",
    ]
    """what to write"""
    out: Annotated[Path, arg(aliases=["-o"], metavar="PATH")]
    """the file to write; for torch-pipeline and torchtitan, the folder"""
    whole: Modules = ()
    """a module that a device map must not divide, in addition to the blocks; may be given several times"""
    names: Names = ()
    """names of the devices in a device map, such as 0,1,cpu or cpu,disk; if not given, numbers, and cpu for CPUs"""


def run(arguments: Arguments) -> None:
    """Simulate the placement, write it, and say how much longer the step takes within the format's limits."""
    _check(arguments)
    if arguments.format == "torch-replicas":
        _torch_replicas(arguments)
        return
    _, _, schedule = simulate_file(arguments)
    graph, path = schedule.problem.graph, arguments.out
    if arguments.format == "device-map":
        _device_map(schedule, arguments)
    elif arguments.format == "torch-pipeline":
        _torch_pipeline(schedule, arguments)
    elif arguments.format == "torchtitan":
        _torchtitan(schedule, arguments)
    elif arguments.format in ("megatron", "vllm", "llama.cpp", "exo"):
        _layer_tool(schedule, arguments)
    elif arguments.format == "dot":
        from placeto.formats.exports import modules_dot

        write_text(modules_dot(schedule), path)
        say(f"dot          {path}: draw it with dot -Tsvg {path} -o {path.stem}.svg")
    else:
        from placeto.formats.exports import save_graphml

        save_graphml(schedule, path)
        say(f"graphml      {path}: {graph.num_ops} ops, {graph.num_edges} edges")


def _check(arguments: Arguments) -> None:
    """Refuse an output that can't be written, and options of other formats, before any work is done."""
    path, kind = arguments.out, arguments.format
    if kind == "stages":  # for one version: it was a format
        raise UsageError(
            "--format stages: there is no such format any more; place a step in micro-batches with --placer "
            "torch-pipeline, and export it with --format torch-pipeline"
        )
    if kind not in _FOLDERS or not path.is_dir():
        checked(path, WritablePath, UsageError, "--out")
    if kind in _FOLDERS and path.exists() and not path.is_dir():
        raise UsageError(f"--out {path}: is a file, and {kind} needs a folder: give another name")
    if kind != "device-map":
        refuse(arguments, ("names", "whole"), f"goes with --format device-map, not with {kind}")


def _device_map(schedule: Schedule, arguments: Arguments) -> None:
    from placeto.formats.exports import device_map

    devices, names = schedule.problem.num_devices, arguments.names
    if names and len(names) != devices:
        raise UsageError(f"--names: the cluster has {devices} devices, {len(names)} names are given")
    exported = device_map(schedule, arguments.whole)
    device_names = exported.named(names)
    write_text(json.dumps(device_names, indent=1) + "\n", arguments.out)
    say(f"device map   {arguments.out}: {len(device_names)} modules")
    _cost("the placement", schedule, schedule)
    _cost("whole modules", exported.step.whole, schedule)
    _cost("in program order", exported.step.in_order, schedule)
    _notes([*exported.step.notes, *filter(None, [exported.offload_note(device_names)])])
    if schedule.plan is not None and schedule.plan.recomputed:
        again = ", ".join(schedule.plan.recomputed)
        note(f"a device map recomputes nothing: let your program call {again} by torch.utils.checkpoint")


def _torch_pipeline(schedule: Schedule, arguments: Arguments) -> None:
    from placeto.cli.shared.factory import settings_of
    from placeto.formats.exports import save_torch_pipeline, torch_pipeline

    options, folder = arguments.options, arguments.out
    pipeline = torch_pipeline(schedule)
    factory = arguments.graph if is_factory(arguments.graph) else None
    kept = (folder / "run.py").exists()
    save_torch_pipeline(pipeline, folder, factory, settings_of(options.settings), options.loss)
    plan = pipeline.order.plan
    counts = f"stages {len(plan.devices)}, replicas {len(plan.replicas)}, micro-batches {plan.num_micro_batches}"
    say(f"pipeline     {folder}: {counts}")
    _stages(zip(pipeline.modules, plan.devices, strict=True), schedule, "ops between modules")
    whole, free = pipeline.step.makespan_us, schedule.makespan_us
    say(f"simulated    {format_us(free)} by ops, {format_us(whole)} as torch runs it, in whole chunks")
    note_other_time(arguments.placement, schedule, whole, free)
    _say_how_to_run(arguments, pipeline.num_ranks, kept)
    note_of_memory(pipeline.step, plan, schedule.problem.graph)


def _torch_replicas(arguments: Arguments) -> None:
    from placeto.cli.shared.factory import settings_of
    from placeto.errors import PlanError
    from placeto.formats.exports import save_torch_replicas
    from placeto.formats.plan import load_plan
    from placeto.problem.messages import within

    cluster, folder = find_cluster(arguments.cluster), arguments.out
    options = as_planned(arguments.placement, arguments.graph, cluster, arguments.options)
    way = load_plan(arguments.placement)
    if way is None:
        raise UsageError(f"{arguments.placement}: torch-replicas needs a plan file, as `placeto plan -o` writes it")
    check_replicas(arguments.placement, way, arguments.graph, options)
    factory = arguments.graph if is_factory(arguments.graph) else None
    kept = (folder / "run.py").exists()
    with within(PlanError, arguments.placement):
        ranks = save_torch_replicas(way, folder, factory, settings_of(options.settings), options.loss)
    say(f"replicas     {folder}: {way.kind} ({way.shape}), micro-batches {way.micro_batches}")
    say(f"simulated    {format_us(float(way.step_us))}")
    _say_how_to_run(arguments, ranks, kept)


def _say_how_to_run(arguments: Arguments, ranks: int, kept: bool) -> None:
    """Print the command that runs an exported program, and what the user has to know of it."""
    program, precision = arguments.out / "run.py", arguments.options.precision
    say(f"run          torchrun --standalone --nproc-per-node {ranks} {program}")
    if kept:
        note(f"{program} was there already and stays as it is; remove it for a new one")
    if not is_factory(arguments.graph):
        note(f"{arguments.graph} is no function that makes the model: give run.py one, --factory file.py:function")
    if precision != "fp32":
        note(f"run.py trains the model as the factory makes it, not in {precision}: change it there")


def _torchtitan(schedule: Schedule, arguments: Arguments) -> None:
    from placeto.formats.exports.torchtitan import save_torchtitan, torchtitan

    exported, path = torchtitan(schedule), arguments.out
    save_torchtitan(exported, path, _batch(arguments))
    _layers(exported.layers, "torchtitan", path)
    free, whole = schedule.makespan_us, exported.pipeline.step.makespan_us
    say(f"simulated    {format_us(free)} as placed, {format_us(whole)} as torchtitan runs it, in whole chunks")
    say(f"run          return placed(config) of {path / 'parallelism.py'} in a function of a config_registry")
    _layer_notes(exported.layers, exported.pipeline.step, "torchtitan", exported.ranks, arguments)
    if exported.renamed:
        note("its modules have other names than in torchtitan: the file names them as torchtitan's models do")


def _layer_tool(schedule: Schedule, arguments: Arguments) -> None:
    from placeto.formats.exports.layer_tools import LAYER_TOOLS, TITLES, ranks_by_stage
    from placeto.formats.exports.whole_layers import whole_layers
    from placeto.simulator.schedule import simulate

    title, path = TITLES[arguments.format], arguments.out
    layers = whole_layers(schedule, title, arguments.format in _TRAIN)
    write_text(LAYER_TOOLS[arguments.format](layers, _batch(arguments)), path)
    _layers(layers, title, path)
    step = f"simulated    {format_us(schedule.makespan_us)} as placed"
    if arguments.format != "megatron":
        say(f"{step}, {format_us(layers.schedule.makespan_us)} in whole layers")
        _layer_notes(layers, layers.schedule, title, tuple(device for row in layers.ranks for device in row), arguments)
        if schedule.problem.graph.mode == "training":
            note(f"the placement is of a training step, and {title} runs inference: place with --inference")
        return
    schedule_1f1b = simulate(schedule.problem.under("1f1b"), layers.schedule.placement)
    say(f"{step}, {format_us(schedule_1f1b.makespan_us)} in whole layers and in {title}'s order, 1F1B")
    _layer_notes(layers, schedule_1f1b, title, ranks_by_stage(layers), arguments)
    if schedule.problem.graph.mode != "training":
        note(f"the placement is of an inference, and {title} trains: place without --inference")


def _batch(arguments: Arguments) -> int | None:
    """Return the samples of a step, if a FACTORY is given and the tool trains; None if not, or if they aren't known."""
    from placeto.cli.shared.factory import user_step

    if not is_factory(arguments.graph) or arguments.format not in _TRAIN:
        return None
    return user_step(arguments.graph, arguments.options, "cpu" if arguments.options.run else "meta").batch or None


def _layers(layers: WholeLayers, title: str, path: Path) -> None:
    replicas = f", replicas {len(layers.plan.replicas)}" if len(layers.plan.replicas) > 1 else ""
    say(f"{title:<12} {path}: layers {len(layers.modules)}, stages {len(layers.stages)}{replicas}")
    modules = [layers.modules[first:end] for first, end in layers.stages]
    _stages(zip(modules, layers.plan.devices, strict=True), layers.schedule, "no layer")


def _stages(stages: Iterable[tuple[Sequence[str], Sequence[int]]], schedule: Schedule, without: str) -> None:
    """Print the devices and the first and last module of each stage."""
    names = schedule.problem.cluster.device_names
    for number, (modules, devices) in enumerate(stages):
        what = f"{modules[0]}{f' to {modules[-1]}' if len(modules) > 1 else ''}" if modules else without
        say(f"stage {number:<6} {', '.join(names[device] for device in devices)}: {what}")


def _layer_notes(layers: WholeLayers, step: Schedule, title: str, ranks: tuple[int, ...], arguments: Arguments) -> None:
    """Say what the user has to know of whole layers and of the step as the tool runs it."""
    from placeto.formats.exports.layer_tools import hosts_in_order

    cluster = layers.schedule.problem.boards
    if layers.moved > 0.0:
        note(f"{layers.moved:.1%} of the time is moved to another device, so that layers are whole")
    note_memory("in whole layers it", step)
    if arguments.format != "exo" and not hosts_in_order(cluster, ranks):
        note(f"{title} counts ranks by stages, which change hosts: start each rank on the device that the file names")
    if arguments.format in _TRAIN and not layers.recomputes_as(arguments.format):
        of_stages = ", ".join(map(str, layers.recomputed))
        planned = f"the plan recomputes {of_stages} of them in its stages, or parts of these"
        which = "the first layers of each stage, equally many" if title == "Megatron-LM" else "all layers or none"
        note(f"{title} recomputes {which}; {planned}, and takes less time")
    if arguments.format in _TRAIN and (beside := layers.recomputed_beside):
        note(f"{title} recomputes no {', '.join(beside)}, as the plan does: the step takes more memory")
    if arguments.format in _TRAIN and not is_factory(arguments.graph):
        note("the size of the batch isn't known: the file has micro-batches of one sample, change it there")


def _notes(sentences: Sequence[str]) -> None:
    for sentence in sentences[:_NOTES]:
        note(sentence)
    if len(sentences) > _NOTES:
        note(f"and {len(sentences) - _NOTES} more such reasons")


def _cost(what: str, schedule: Schedule, free: Schedule) -> None:
    from placeto.evaluation.summary import ratio

    us = schedule.makespan_us
    times = "" if schedule is free else f", {ratio(us, free.makespan_us):.3f} times the placement's"
    say(f"{what:<17} {format_us(us):>10}{times}")
