"""Ways out where a step fits in no way: more micro-batches, a smaller batch, more devices.

Each change is planned by the driver behind `plan`, with the ways that need the least memory. At most three larger
numbers of micro-batches, seven smaller batches and four larger numbers of devices are planned.

Legend: M micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Protocol

from placeto.errors import CaptureError
from placeto.planning.numbers import Numbers
from placeto.planning.planned_steps import PlannedStep, WayOut
from placeto.problem.cluster.more_devices import with_devices
from placeto.problem.problem import PlacementProblem


class Smaller(Protocol):
    """Returns the step in a number of micro-batches, of all samples or of the first ones."""

    def __call__(self, count: int, samples: int = ..., /) -> PlacementProblem: ...  # noqa: D102


Leanest = Callable[[PlacementProblem, int], PlannedStep]
"""Returns the best of the ways that need the least memory, given the step and its number of samples."""

_NUMBERS = 3  # larger numbers of micro-batches to try
_BATCHES = 63  # sizes of a micro-batch among which the largest is sought
_MOST_OPS = 200_000  # of a step that is planned


def ways_out(
    numbers: Numbers, best: PlannedStep, batch: int, leanest: Leanest, smaller: Smaller | None
) -> tuple[WayOut, ...]:
    """Return the step after each change: the least change with which it fits, or else the largest that was tried.

    Args:
        numbers: the step in numbers of micro-batches.
        best: the way that lacks the least memory.
        batch: number of samples of a step.
        leanest: plans a step that was changed.
        smaller: returns the step with fewer samples; None = it can't be made smaller.
    """
    ops = {count: problem.graph.num_ops / count for count, problem in numbers.problems.items()}

    def planned(count: int, samples: int = batch, devices: int = 0) -> PlannedStep | None:
        """Plan the step; None if it can't be captured so, or would have too many ops."""
        if count * ops[max(ops)] > _MOST_OPS:
            return None
        try:
            problem = numbers(count) if smaller is None or samples == batch else smaller(count, samples)
        except CaptureError:
            return None
        if devices:
            problem = replace(problem, cluster=with_devices(problem.cluster, devices))
        return leanest(problem, samples)

    found = [_more_devices(best, batch, planned)]
    if best.resident_bytes <= best.room:  # else neither of these makes enough room
        found = [_more_micro_batches(max(numbers.problems), best, batch, planned), *found]
        if smaller is not None and max(numbers.problems) > 1:  # so dimension 0 is the batch
            found.insert(1, _smaller_batch(best.micro_batches, batch, planned))
    return tuple(way for way in found if way is not None)


Planned = Callable[..., PlannedStep | None]


def _more_micro_batches(tried: int, best: PlannedStep, batch: int, planned: Planned) -> WayOut | None:
    """The least number of micro-batches in which the step fits, each at least twice as large as the one before."""
    divisors = [count for count in range(tried + 1, batch + 1) if batch % count == 0]
    devices = len(best.result.problem.cluster.computing)
    divisors = [count for count in divisors if count % max(devices, 1) == 0] or divisors

    def changes() -> Iterator[WayOut]:
        last = tried
        for count in divisors:
            if count >= min(2 * last, batch) and (step := planned(count)) is not None:
                last = count
                yield WayOut(f"--micro-batches {count}", step)

    return _first_that_fits(changes(), _NUMBERS)


def _smaller_batch(count: int, batch: int, planned: Planned) -> WayOut | None:
    """The largest batch in which the step fits in the same number of micro-batches; else the smallest such batch."""
    most = (batch - 1) // count  # samples of a micro-batch
    if most == 0:
        return None
    size = -(-most // _BATCHES)

    def change(samples: int) -> WayOut | None:
        step = planned(count, samples)
        return None if step is None else WayOut(f"a batch of {samples}", step)

    best = change(count)
    low, high = 1 // size, most // size  # it fits with `low` times `size` samples in a micro-batch
    while best is not None and best.step.fits and low < high:
        middle = (low + high + 1) // 2
        made = change(middle * size * count)
        if made is not None and made.step.fits:
            best, low = made, middle
        else:
            high = middle - 1
    return best


def _more_devices(best: PlannedStep, batch: int, planned: Planned) -> WayOut | None:
    """The least number of devices on which the step fits: one more, twice as many, four times, eight times."""
    count = max(len(best.result.problem.cluster.computing), 1)

    def changes() -> Iterator[WayOut]:
        for total in dict.fromkeys((count + 1, 2 * count, 4 * count, 8 * count)):
            dealt = total if best.micro_batches % total and batch % total == 0 else best.micro_batches
            if (step := planned(dealt, devices=total)) is not None:
                yield WayOut(f"{total} devices", step)

    return _first_that_fits(changes(), 4)


def _first_that_fits(changes: Iterator[WayOut], most: int) -> WayOut | None:
    """The first change with which the step fits, or else the last of the first `most`; None if there is none."""
    last = None
    for last in islice(changes, most):
        if last.step.fits:
            break
    return last
