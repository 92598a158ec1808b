"""Ways out where a step fits in no way: more micro-batches, a smaller batch, optimizer state on hosts, more devices.

Each change is planned by the driver behind `plan`, with the ways that need the least memory. At most three larger
numbers of micro-batches, seven smaller batches and four larger numbers of devices are planned.

If the hosts keep the optimizer's state, they also make the update, as in ZeRO-Offload (Ren et al., 2021, arXiv
2101.06840): once a step, gradients go to the host, and weights come back. Nothing is assumed to hide this.

Legend: D devices, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from placeto.errors import CaptureError
from placeto.planning.planned_steps import PlannedStep, WayOut
from placeto.planning.variants import COUNTS, Variants, is_large
from placeto.problem.cluster.boards import CPU
from placeto.problem.cluster.more_devices import with_devices
from placeto.problem.cluster.presets import PCIE3
from placeto.problem.graph.graph_memory import with_optimizer
from placeto.problem.problem import PlacementProblem

Leanest = Callable[[PlacementProblem], PlannedStep]
"""Returns the best of the ways that need the least memory."""

_NUMBERS = 3  # larger numbers of micro-batches to try
_BATCHES = 63  # sizes of a micro-batch among which the largest is sought
_UPDATES = CPU.memory_bandwidth / 2  # bytes/s that the cores of a host read and write in an update: an estimate


def ways_out(variants: Variants, best: PlannedStep, leanest: Leanest) -> tuple[WayOut, ...]:
    """Return the step after each change: the least change with which it fits, or else the largest that was tried.

    Args:
        variants: the step. If the size of its batch is known, a smaller batch is a way out.
        best: the way that lacks the least memory.
        leanest: plans a step that was changed.
    """
    problems, batch = variants.problems(), variants.batch
    most = max(problems)

    def planned(count: int, samples: int | None = None, devices: int = 0, state: bool = True) -> PlannedStep | None:
        """Plan the step; None if it can't be captured so, or would have too many ops."""
        if is_large(problems[most], count):
            return None
        try:
            problem = variants(count, samples=samples)
        except CaptureError:
            return None
        if devices:
            problem = replace(problem, cluster=with_devices(problem.cluster, devices))
        if not state:
            problem = replace(problem, graph=with_optimizer(problem.graph, "sgd"))
        return leanest(problem)

    found = [_more_devices(best, batch, planned)]
    if best.resident_bytes <= best.room:  # else neither of these makes enough room
        found = [_more_micro_batches(most, best, batch, planned), *found]
        if batch and most > 1:  # so dimension 0 is the batch
            found.insert(1, _smaller_batch(best.micro_batches, batch, planned))
    found.insert(-1, _state_on_hosts(best, variants, planned))
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


def _state_on_hosts(best: PlannedStep, variants: Variants, planned: Planned) -> WayOut | None:
    """The step if the optimizer's state is in the memory of the hosts, in the same number of micro-batches or in more.

    None if the optimizer has no state.
    """
    graph = variants(best.micro_batches).graph
    most = max(count for count in COUNTS if variants.batch % count == 0)
    state, trained = int((graph.state_bytes - graph.trained_bytes).sum()), int(graph.trained_bytes.sum())

    def changes() -> Iterator[WayOut]:
        for count in sorted({best.micro_batches, max(best.micro_batches, most)}):
            if (step := planned(count, state=False)) is not None:
                yield _on_hosts(step, state, trained)

    return _first_that_fits(changes(), 2) if state else None


def _on_hosts(step: PlannedStep, state: int, trained: int) -> WayOut:
    """A step without the optimizer's state, which has so many bytes for so many of trained parameters."""
    result, cluster = step.result, step.result.problem.cluster
    updated = np.bincount(result.placement, result.problem.graph.trained_bytes, cluster.num_devices)  # (D,) bytes
    on_host = np.bincount(cluster.hosts, updated)
    sent_us = 2e6 * updated.max() / PCIE3
    update_us = 1e6 * on_host.max() * (2 * state / trained + 3) / _UPDATES  # state and weights are read and written
    where = f"the memory of the {'hosts' if len(on_host) > 1 else 'host'}"
    return WayOut(f"the optimizer's state in {where}", step, sent_us + update_us, int(on_host.max() * state / trained))


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
