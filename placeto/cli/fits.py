"""``placeto fits``: whether a model's training step fits a device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from tyro.conf import Positional, arg

from placeto.cli.common import OptionalInt, OptionalText, UsageError, find_cluster, note, say
from placeto.cli.graphs import Training, TrainingOptions, check_step
from placeto.cli.model_config import MODEL_HELP, can_checkpoint, checkpoint, find_model, is_config
from placeto.cli.plan import size_of
from placeto.planning.numbers import COUNTS
from placeto.progress import ProgressBar


@dataclass(frozen=True)
class Arguments:
    """Say whether a model's training step fits into the memory of a device, and what takes its memory.

    If the step doesn't fit, Placeto splits the batch into more and more micro-batches, and for a CONFIG also
    checkpoints the activations, until it fits. If that isn't enough, it divides parameters, gradients and optimizer
    state over the devices of the cluster. Nothing is placed; `placeto plan` says which way is fast. Only training steps
    are simulated, without tensor parallelism and quantized weights.
    """

    model: Annotated[Positional[str], arg(metavar="FACTORY|CONFIG", help=MODEL_HELP)]
    cluster: OptionalText = None
    """a name from `placeto list clusters`, or a cluster file; the answer is given for each kind of device in it"""
    memory: Annotated[str | None, arg(metavar="SIZE")] = None
    """memory of a device, such as 24GB, in place of --cluster"""
    headroom: Annotated[str, arg(metavar="SIZE")] = "0"
    """memory of each device that stays free, such as 1GB"""
    batch: OptionalInt = None
    """for a CONFIG: how many sequences a step has, 1 if not given"""
    length: OptionalInt = None
    """for a CONFIG: how many tokens a sequence has, 1024 if not given"""
    step: Training = field(default_factory=TrainingOptions)


def run(arguments: Arguments) -> None:
    """Simulate the step on one device and print what it holds."""
    from placeto.capture.batch_dimension import batch_length
    from placeto.capture.trace import capture_training
    from placeto.planning.fits import device_of, fits
    from placeto.planning.ways import with_headroom
    from placeto.problem.graph import ComputationGraph

    options = arguments.step
    if (arguments.cluster is None) == (arguments.memory is None):
        raise UsageError("give either --cluster or --memory: the devices to try, or the memory of one device")
    counts = COUNTS if isinstance(options.micro_batches, str) else (options.micro_batches,)
    check_step(replace(options, micro_batches=counts[-1]))
    headroom = size_of(arguments.headroom)
    if arguments.cluster is not None:
        cluster = find_cluster(arguments.cluster, None)
    else:
        memory = size_of(str(arguments.memory), "--memory")
        if memory <= headroom:
            why = f"--headroom {arguments.headroom} leaves no memory" if headroom else "give a size such as 16GB"
            raise UsageError(f"--memory {arguments.memory}: {why}")
        cluster = device_of(memory)
    cluster = with_headroom(cluster, headroom)
    name, module, inputs, loss, targets = find_model(arguments.model, options, arguments.batch, arguments.length)
    both = is_config(arguments.model) and can_checkpoint(module)

    with ProgressBar("capturing", total=(len(counts) + 1) * (1 + both)) as bar:

        def capture(count: int, checkpoints: bool) -> ComputationGraph:
            parts = f"{count} micro-batch{'es' if count > 1 else ''}"
            bar.advance(note=f"{parts}{' with checkpointing' if checkpoints else ''}")
            if both:
                checkpoint(module, checkpoints)
            how = {"name": name, "targets": targets, "micro_batches": count} | options.how
            return capture_training(module, inputs, loss, **how)

        batch = batch_length(inputs, targets)
        found = fits(capture, cluster, batch, counts, (False, True) if both else (False,))
    of_module = list(module.parameters())
    number, trained = (sum(one.numel() for one in of_module if one.requires_grad or every) for every in (True, False))
    dtypes = ", ".join(sorted({str(one.dtype).removeprefix("torch.") for one in of_module}))
    what = f"{number / 1e6:,.1f} million parameters in {dtypes}"
    what += "" if trained == number else f", of which {trained / 1e6:,.1f} million are trained"
    how = "" if options.precision == "fp32" else f", {options.precision}"
    say(f"{name}: {what}, batch {batch}{how}, {options.optimizer}")
    say(str(found))
    say(found.advice())
    if not any(step.fits for step in found.steps):
        for count, why in found.left_out.items():
            note(f"not tried in {count} micro-batches: {why}")
