"""``placeto fits``: say whether a training step fits into the memory of a device, and what takes its memory."""

from __future__ import annotations

from dataclasses import dataclass

from placeto.cli.shared.common import find_cluster, note, say
from placeto.cli.shared.model_config import Model
from placeto.cli.shared.options import OptionalSize, OptionalText
from placeto.errors import UsageError
from placeto.plumbing.progress import ProgressBar


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Say whether a model's training step fits into the memory of a device, and what takes its memory.

    If the step doesn't fit, Placeto splits the batch into more and more micro-batches, and then recomputes blocks of
    the model, as few as possible, until it fits. If that isn't enough, it divides parameters, gradients and optimizer
    state over the devices of the cluster, and then tries all ways that `placeto plan` tries, which takes longer.
    `placeto plan` says which way is fast. Only training steps are simulated, without tensor parallelism and quantized
    weights.
    """

    cluster: OptionalText = None
    """a name from `placeto list clusters`, or a cluster file; the answer is given for each kind of device in it"""
    memory: OptionalSize = None
    """memory of a device, such as 24GB, in place of --cluster"""
    model: Model


def run(arguments: Arguments) -> None:
    """Simulate the step on one device and print what it holds."""
    from placeto.planning.fits import device_of, fits
    from placeto.planning.variants import Variants
    from placeto.problem.costs import load_costs

    options, memory = arguments.model, arguments.memory
    if (arguments.cluster is None) == (memory is None):
        raise UsageError("give either --cluster or --memory: the devices to try, or the memory of one device")
    cluster = find_cluster(str(arguments.cluster)) if memory is None else device_of(memory)
    model, costs = options.find(), load_costs("efficiency")
    with ProgressBar("capturing", total=len(options.counts) + 1) as bar:
        graph_of = options.captured(model, bar)
        result = fits(Variants(graph_of, cluster, costs, model.batch, headroom=options.headroom), options.counts)
    of_module = list(model.module.parameters())
    number, trained = (sum(one.numel() for one in of_module if one.requires_grad or every) for every in (True, False))
    dtypes = ", ".join(sorted({str(one.dtype).removeprefix("torch.") for one in of_module}))
    what = f"{_counted(number)} parameters in {dtypes}"
    what += "" if trained == number else f", of which {_counted(trained)} are trained"
    how = "" if options.precision == "fp32" else f", {options.precision}"
    say(f"{model.name}: {what}, batch {model.batch}{how}, {options.optimizer}")
    say(str(result))
    say(result.advice())
    if not any(step.fits for step in result.steps):
        for count, why in result.left_out.items():
            note(f"not tried in {count} micro-batches: {why}")


def _counted(number: int) -> str:
    """A number in words.

    >>> _counted(85), _counted(37_812_544)
    ('85', '37.8 million')
    """
    return f"{number:,}" if number < 100_000 else f"{number / 1e6:,.1f} million"
