"""``placeto plan``: compare the ways to run a training step on a cluster: replicas, pipelines, a free placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from placeto.cli.shared.common import find_cluster, note, note_unmeasured, say, say_left_out
from placeto.cli.shared.device_bars import show_devices
from placeto.cli.shared.model_config import Model, precision_of
from placeto.cli.shared.options import ClusterName, CostsName, OptionalJsonOut, OptionalPage, Seed, Whole
from placeto.plumbing.progress import ProgressBar

if TYPE_CHECKING:
    from torch import nn

    from placeto.planning.planned_steps import PlannedStep, Plans


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Say which way to run a model's training step on a cluster: a table of ways, the fastest first, and a sentence.

    The ways to run a step are: one device; whole modules on several devices, one after the other; data parallelism,
    in which each device gets a part of the batch and holds all of the model, or only a part of the optimizer state,
    the gradients and the parameters; pipelines of stages with replicas; interleaved pipelines, in which a device has
    several stages; and a free placement of single ops. If the model has a parallel plan, as models of transformers
    do, each device may also be a tensor-parallel group of 2, 4 or 8 boards of a host.

    Each way is shown with the number of micro-batches (M) and the order of execution that are best for it. The
    numbers tried are 1, 2, 4, 8 and 16, or 1 and that of --micro-batches. A step of more than 200,000 ops is tried
    in the largest of them, or in as many micro-batches as devices, and in those in which it may be faster. If the
    fastest way doesn't fit, ways are tried in which blocks of the model are recomputed for the backward pass, as few
    as possible.

    The column "fullest device" says what the device that uses the largest share of its memory holds: weights (w),
    gradients (g), optimizer state (o), activations (a), and copies received from other devices (r). The bars show
    what each device does in the best way.
    """

    cluster: ClusterName
    simulations: Whole = 300
    """budget of the search for a free placement; 0 leaves the free placement out"""
    runnable_by: Annotated[Literal["torch", "torchtitan", "megatron"] | None, arg(metavar="TOOL")] = None
    """torch, torchtitan or megatron: of pipelines, show only those that `placeto export` can write for this tool"""
    costs: CostsName = "efficiency"
    seed: Seed = 0
    out: OptionalJsonOut = None
    """write the best way to this .json file, as a plan"""
    report: OptionalPage = None
    """write a page to this .html file, with the table, and for the best way what `placeto report` writes"""
    model: Model


_SNIPPET = """{when}:
    from functools import partial
    from torch.utils.checkpoint import checkpoint
    for path in {paths}:
        block = model.get_submodule(path)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)"""
_SNIPPET_NORMS = """
        for norm in block.modules():  # two updates with each micro-batch make one with this momentum
            if getattr(norm, "running_mean", None) is not None and norm.momentum is not None:
                norm.momentum = 1 - (1 - norm.momentum) ** 0.5"""

_SNIPPET_TRANSFORMERS = """Under torchrun with {ranks} ranks, transformers shards the model so:
    from transformers.distributed import DistributedConfig
    parts = DistributedConfig(tp_size={width}, fsdp_size={replicas})
    model = {name}.from_pretrained(FOLDER, distributed_config=parts)"""


def run(arguments: Arguments) -> None:
    """Plan, print the table and the sentence, write what was asked for."""
    from placeto.capture.trace import parallel_plan
    from placeto.formats.plan import save_plan
    from placeto.planning.planned_steps import CHECKPOINTED, PIPELINES
    from placeto.planning.variants import Variants, widths_on
    from placeto.planning.ways import plans_of
    from placeto.problem.costs import load_costs

    cluster, options, costs = find_cluster(arguments.cluster), arguments.model, load_costs(arguments.costs)
    model, counts, by = options.find(), tuple(dict.fromkeys((*options.counts, 1))), arguments.runnable_by
    name, batch, widths = model.name, model.batch, widths_on(cluster)
    sharded = parallel_plan(model.module, model.parallel)
    with ProgressBar("planning", total=len(counts) * (1 + len(widths) * bool(sharded)) + 1) as bar:
        graph_of = options.captured(model, bar)
        variants = Variants(graph_of, cluster, costs, batch, bool(sharded), options.headroom)
        plans = plans_of(variants, counts, arguments.simulations, arguments.seed, by)
        bar.update(bar.total)
    if set(plans.left_out) == set(counts[1:]) and all(batch % count for count in counts[1:]):
        note(f"give --micro-batches a number that divides the batch of {batch} for ways to run it on several devices")
    elif by is not None and len(cluster.devices) > 1 and not any(step.kind in PIPELINES for step in plans.steps):
        why = plans.refused or "`placeto export` says of a placement what it refuses"
        note(f"no pipeline of {name} was found that {by} runs: {why}")
    dtypes = precision_of(model.module, options.precision)
    say(f"{name} on {cluster.name}: batch {batch}, {dtypes}, {options.optimizer}")
    say(str(plans))
    say_left_out(plans.left_out)
    if no_groups := plans.no_groups or (f"{name} has no parallel plan" if widths and not sharded else ""):
        say(f"not tried in groups: {no_groups}")
    if any(step.run_by == "torch-pipeline" and step.recomputed == CHECKPOINTED for step in plans.steps):
        say(
            "torch-pipeline traces the model without its activation checkpoints: it takes more memory, and less time, "
            "than the table says"
        )
    say(plans.advice())
    best, own_plan = plans.best, sharded if model.parallel is None else {}
    if sharding := _by_transformers(best, model.module, own_plan) if best.fits else "":
        say(sharding)
    if best.fits and best.plan is not None and best.kind not in PIPELINES and (again := best.plan.recomputed):
        parts = (part for path in again for part in model.module.get_submodule(path).modules())
        norms = any(getattr(part, "running_mean", None) is not None for part in parts)
        when = "Then" if sharding else "In your program, before the model is wrapped"
        say(_SNIPPET.format(when=when, paths=_in_python(again)) + (_SNIPPET_NORMS if norms else ""))
    note_unmeasured(plans.best.schedule.problem)
    show_devices(plans.best.schedule, memory=False)
    if arguments.report is not None:
        _write_report(plans, arguments.report, name)
    if arguments.out is not None:
        save_plan(best.file(cluster, batch), arguments.out)
        if best.placement is None:
            how = f"`placeto run --plan` runs it by {best.run_by}"
            note(f"{arguments.out} has no placement, as gradients are sharded; {how}")


def _by_transformers(step: PlannedStep, module: nn.Module, brought_along: Mapping[str, Any]) -> str:
    """Return lines that let transformers shard its own model as a way does; "" where it can't.

    These ways are a single group, and fully sharded replicas, each of which may be a group. Its configuration has no
    replicas that shard the optimizer or the gradients alone.

    Args:
        step: the way.
        module: the model.
        brought_along: the model's own parallel plan; empty if it has none, or another one is used.
    """
    from placeto.planning.planned_steps import Kind

    fully_sharded = step.kind == Kind.FULLY_SHARDED and getattr(module, "fsdp_plan", None)
    if (step.width > 1 and not brought_along) or not (fully_sharded or step.kind == Kind.GROUP):
        return ""
    replicas = len(step.plan.used) if fully_sharded and step.plan is not None else 1
    name, ranks = type(module).__name__, step.width * replicas
    return _SNIPPET_TRANSFORMERS.format(ranks=ranks, width=step.width, replicas=replicas, name=name)


def _in_python(paths: tuple[str, ...]) -> str:
    """Write paths in Python: a loop over their numbers if they are the first modules of one list.

    >>> _in_python(("h.0", "h.1", "h.2")), _in_python(("h.0", "h.2"))
    ("['h.' + str(number) for number in range(3)]", "('h.0', 'h.2')")
    """
    parent = paths[0].rpartition(".")[0] + "."
    if len(paths) > 1 and paths == tuple(f"{parent}{number}" for number in range(len(paths))):
        return f"[{parent!r} + str(number) for number in range({len(paths)})]"
    return repr(paths)


def _write_report(plans: Plans, path: Path, name: str) -> None:
    """Write a page with the table of all ways, and with a report on the best way."""
    from placeto.formats.report import Ways, report_page
    from placeto.planning.planned_steps import PIPELINES
    from placeto.problem.files import write_text
    from placeto.problem.units import format_bytes

    (head, *rows), best = plans.cells(), plans.best
    schedule = best.placed if best.kind in PIPELINES else best.schedule
    note = ""
    if plans.best.used not in schedule.peak_memory.tolist():
        note = "The table has what frameworks keep on each replica; below, each parameter is kept by one of them."
    write_text(report_page(schedule, name, ways=Ways(head, rows, plans.advice(), note)), path)
    say(f"report       {path} ({format_bytes(path.stat().st_size)})")
