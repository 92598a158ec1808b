"""``placeto plan``: which way to run a model on given devices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from placeto.cli.common import (
    CostsText,
    OptionalInt,
    OptionalPath,
    OutputPath,
    UsageError,
    check_output,
    check_whole,
    find_cluster,
    note,
    say,
)
from placeto.cli.devices import show_devices
from placeto.cli.graphs import Training, TrainingOptions, check_step
from placeto.cli.model_config import MODEL_HELP, find_model
from placeto.cli.report import check_page
from placeto.planning.numbers import COUNTS
from placeto.progress import ProgressBar

if TYPE_CHECKING:
    from placeto.planning.steps import Plans

_LEAST = 1_000_000  # bytes that a size without a unit must have


@dataclass(frozen=True)
class Arguments:
    """Say which way to run a model's training step on a cluster: a table of ways, the fastest first, and a sentence.

    The ways to run a step are: one device; whole modules on several devices, one after the other; data parallelism,
    in which each device gets a part of the batch and holds all of the model, or only a part of the optimizer state,
    the gradients and the parameters; pipelines of stages with replicas; interleaved pipelines, in which a device has
    several stages; and a free placement of single ops.

    Each way is shown with the number of micro-batches (M) and the order of execution that are best for it. The
    numbers tried are 1, 2, 4, 8 and 16, or 1 and that of --micro-batches.

    The column "fullest device" says what the device that uses the largest share of its memory holds: weights (w),
    gradients (g), optimizer state (o), activations (a), and copies received from other devices (r). The bars show
    what each device does in the best way.
    """

    model: Annotated[Positional[str], arg(metavar="FACTORY|CONFIG", help=MODEL_HELP)]
    cluster: str
    """a name from `placeto list clusters`, or a cluster file"""
    headroom: Annotated[str, arg(metavar="SIZE")] = "0"
    """memory of each device that stays free, such as 1GB"""
    simulations: Annotated[int, arg(metavar="INT")] = 300
    """budget of the search for a free placement; 0 leaves the free placement out"""
    runnable_by: Annotated[Literal["torch", "torchtitan", "megatron"] | None, arg(metavar="TOOL")] = None
    """torch, torchtitan or megatron: show only pipelines that `placeto export` can write for this tool"""
    costs: CostsText = "efficiency"
    """how long ops take: efficiency, roofline, or a file of costs"""
    seed: int = 0
    """seed of the search for a free placement"""
    output: OutputPath = None
    """write the best way to this .json file, as a plan"""
    report: OptionalPath = None
    """write a page to this .html file, with the table, and for the best way what `placeto report` writes"""
    batch: OptionalInt = None
    """for a CONFIG: how many sequences a step has, 1 if not given"""
    length: OptionalInt = None
    """for a CONFIG: how many tokens a sequence has, 1024 if not given"""
    step: Training = field(default_factory=TrainingOptions)


def run(arguments: Arguments) -> None:
    """Plan, print the table and the sentence, write what was asked for."""
    check_output("--out", arguments.output, json=True)
    check_page("--report", arguments.report)
    several = arguments.step.micro_batches
    counts = COUNTS if isinstance(several, str) else tuple(dict.fromkeys((several, 1)))
    check_step(replace(arguments.step, micro_batches=several if isinstance(several, int) else 1))
    check_whole("--simulations", arguments.simulations)
    check_whole("--seed", arguments.seed)
    from placeto.capture.batch_dimension import batch_length
    from placeto.capture.trace import CaptureError, capture_training
    from placeto.formats.plan import save_plan
    from placeto.planning.steps import PIPELINES
    from placeto.planning.ways import plans_of, with_headroom
    from placeto.problem.costs import load_costs
    from placeto.problem.problem import PlacementProblem

    given = find_cluster(arguments.cluster, None)
    cluster = with_headroom(given, size_of(arguments.headroom))
    costs, options = load_costs(arguments.costs), arguments.step
    name, module, inputs, loss, targets = find_model(arguments.model, options, arguments.batch, arguments.length)

    with ProgressBar("planning", total=len(counts)) as bar:

        def problem_of(count: int) -> PlacementProblem:
            bar.advance(note=f"{count} micro-batch{'es' if count > 1 else ''}")
            how = {"name": name, "targets": targets, "micro_batches": count} | options.how
            try:
                graph = capture_training(module, inputs, loss, **how)
            except CaptureError as error:
                if count == several:
                    raise UsageError(f"--micro-batches {several}: {error}") from None
                raise
            return PlacementProblem(graph, cluster, costs)

        batch, by = batch_length(inputs, targets), arguments.runnable_by
        plans = plans_of(problem_of, batch, counts, arguments.simulations, arguments.seed, by)
    if set(plans.left_out) == set(counts[1:]) and all(batch % count for count in counts[1:]):
        note(f"give --micro-batches a number that divides the batch of {batch} for ways to run it on several devices")
    elif by is not None and len(cluster.devices) > 1 and not any(step.kind in PIPELINES for step in plans.steps):
        why = plans.refused or "`placeto export` says of a placement what it refuses"
        note(f"no pipeline of {name} was found that {by} runs: {why}")
    say(f"{name} on {cluster.name}: batch {plans.best.batch}, {options.precision}, {options.optimizer}")
    say(str(plans))
    if plans.left_out:
        numbers, first = ", ".join(map(str, plans.left_out)), next(iter(plans.left_out.values()))
        say(f"not tried in {numbers} micro-batches: {first}")
    if plans.torch_refusal:
        say(f"no pipeline can be exported for torch: {plans.torch_refusal}")
    if any(step.run_by == "torch-pipeline" and step.recomputes for step in plans.steps):
        say(
            "torch-pipeline traces the model without its activation checkpoints: it takes more memory, and less time, "
            "than the table says"
        )
    say(plans.advice())
    show_devices(plans.best.schedule, memory=False)
    if arguments.report is not None:
        _write_report(plans, arguments.report, name)
    if arguments.output is not None:
        save_plan(plans.best.file(given), arguments.output)
        if plans.best.placement is None:
            note(f"{arguments.output} has no placement, as parameters are sharded: run it with {plans.best.run_by}")


def _write_report(plans: Plans, path: Path, name: str) -> None:
    """Write a page with the table of all ways, and with a report on the best way."""
    from placeto.formats.report import Ways, report_page
    from placeto.planning.steps import PIPELINES
    from placeto.problem.files import write_text
    from placeto.problem.units import format_bytes

    (head, *rows), best = plans.cells(), plans.best
    schedule = best.placed if best.kind in PIPELINES else best.schedule
    note = ""
    if plans.best.used not in schedule.peak_memory.tolist():
        note = "The table has what frameworks keep on each replica; below, each parameter is kept by one of them."
    write_text(report_page(schedule, name, ways=Ways(head, rows, plans.advice(), note)), path)
    say(f"report       {path} ({format_bytes(path.stat().st_size)})")


def size_of(text: str, option: str = "--headroom") -> int:
    """Parse a size such as 1GB or 512MB; return its bytes.

    Raises:
        UsageError: the text is no size, or is a number without a unit below 1,000,000 (0 is allowed).
    """
    from placeto.problem.units import parse_bytes

    try:
        size = parse_bytes(text)
    except ValueError:
        raise UsageError(f"{option} {text!r}: must be a size such as 1GB or 512MB") from None
    if 0 < size < _LEAST and text.strip()[-1].isdigit():
        number = text.strip()
        raise UsageError(f"{option} {number}: means {number} bytes; did you mean {number}GB? Write {number}B for bytes")
    return size
