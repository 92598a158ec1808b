"""What several commands say or check."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from tyro.conf import Positional, arg

from placeto.summary import ratio

if TYPE_CHECKING:
    from placeto.simulator import Schedule

GraphArgument = Annotated[Positional[str], arg(metavar="GRAPH")]
GraphArguments = Annotated[Positional[tuple[str, ...]], arg(metavar="GRAPH ...")]
GraphList = Annotated[tuple[str, ...], arg(metavar="GRAPH ...")]
OptionalText = Annotated[str | None, arg(metavar="NAME")]
OptionalPath = Annotated[Path | None, arg(metavar="PATH")]
OptionalInt = Annotated[int | None, arg(metavar="INT")]
OptionalFloat = Annotated[float | None, arg(metavar="FLOAT")]
OutputPath = Annotated[Path | None, arg(name="out", aliases=["-o"], metavar="PATH")]


class UsageError(ValueError):
    """Arguments that don't make sense; the message says which and what would be valid."""


@dataclass(frozen=True)
class BudgetOptions:
    """The learned placer and the budget, as several commands take them."""

    checkpoint: OptionalPath = None
    """the learned placer: a checkpoint or run directory of `placeto train`; pretrained is the one that comes along"""
    simulations: OptionalInt = None
    """budget of a placer: how many placements may be simulated; with 0 the policy placeto answers by itself"""
    seconds: OptionalFloat = None
    """budget of a placer: how long it may take, the grouping of ops included; a step that can't be stopped, such as
    that or a simulation, is finished"""

    def check(self) -> None:
        """Refuse a negative number of simulations, and seconds that are no positive, finite number.

        Raises:
            UsageError: the budget is such.
        """
        if self.simulations is not None and self.simulations < 0:
            raise UsageError(f"--simulations must be at least 0, not {self.simulations}")
        check_positive("--seconds", self.seconds)

    def __str__(self) -> str:
        parts = [f"{self.simulations} simulations"] if self.simulations is not None else []
        parts += [f"{self.seconds:g} seconds"] if self.seconds is not None else []
        return " or ".join(parts) if parts else "no budget"


Budget = Annotated[BudgetOptions, arg(name="")]


def check_output(option: str, path: Path | None) -> None:
    """Refuse an output whose folder is missing, before any work is done.

    Raises:
        UsageError: the folder doesn't exist, or the path is a folder.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a directory, give the name of a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: the directory {path.parent} doesn't exist")


def check_positive(option: str, value: float | None) -> None:
    """Refuse a budget that is no positive, finite number.

    Raises:
        UsageError: the value isn't above zero.
    """
    if value is not None and not 0 < value < math.inf:
        raise UsageError(f"{option} must be above 0 and finite, not {value}")


def describe(schedule: Schedule) -> str:
    """Makespan, and each device's load and memory, as a few lines of text."""
    problem, cluster = schedule.problem, schedule.problem.cluster
    busy = np.bincount(schedule.placement, schedule.finish_us - schedule.start_us, cluster.num_devices)
    share = busy / (schedule.makespan_us or 1.0)
    ops = np.bincount(schedule.placement, minlength=cluster.num_devices)
    relative = ratio(schedule.makespan_us, problem.single_device_us)
    bound = ratio(schedule.makespan_us, problem.lower_bound_us)
    width = max(len("device"), *map(len, cluster.device_names))
    lines = [
        f"makespan_us  {float(schedule.makespan_us)!r}",
        f"             {relative:.4f} of the best single device, {bound:.3f} times the lower bound",
        f"transfers    {len(schedule.send_tensor)}",
        f"fits         {'yes' if schedule.fits else f'no: {_overfull(schedule)}'}",
        f"{'device':<{width}}  {'ops':>6}  {'busy':>6}  {'peak memory':>16}",
    ]
    for d, device in enumerate(cluster.devices):
        memory = f"{schedule.peak_memory[d] / 1e9:.2f} of {device.memory / 1e9:.2f} GB"
        lines.append(f"{device.name:<{width}}  {ops[d]:>6}  {share[d]:>6.1%}  {memory:>16}")
    return "\n".join(lines)


def _overfull(schedule: Schedule) -> str:
    """Which devices would need more memory than they have, as a phrase."""
    full = [
        f"{device.name} needs {schedule.peak_memory[d] / 1e9:.2f} of {device.memory / 1e9:.2f} GB"
        for d, device in enumerate(schedule.problem.cluster.devices)
        if schedule.peak_memory[d] > device.memory
    ]
    return ", ".join(full)
