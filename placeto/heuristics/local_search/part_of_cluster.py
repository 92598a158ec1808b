"""Searching on a part of the cluster: in a large cluster, most moves to other hosts gain nothing.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from placeto.problem.cluster.subclusters import halves, subclusters
from placeto.problem.subproblem import on_devices
from placeto.simulator.evaluator import Evaluator

ON_STARTS = 0.15
"""Share of the budget for placing on parts of the cluster by rules, at most."""
ON_SEARCH = 0.8
"""Share of what is then left for a search on the part that the best placement so far is on."""
FOR_HALVES = 500
"""Simulations below which no halves of equal devices are tried, but only what the links and kinds make."""


def parts_to_try(evaluator: Evaluator) -> list[tuple[int, ...]]:
    """Parts of the cluster as `subclusters` makes them, and with a large budget halves, too."""
    cluster = evaluator.problem.cluster
    limited = evaluator.limit is not None or evaluator.seconds_limit is not None
    large = limited and evaluator.expected >= FOR_HALVES
    return [*subclusters(cluster), *(halves(cluster) if large else ())]


def start_on_parts(evaluator: Evaluator, rules: Callable[[Evaluator], None], seconds: float) -> None:
    """Place on parts of the cluster by rules, which took so many seconds on the whole cluster.

    A part that can't be better, by its work and its longest path, is left out.
    """
    problem = evaluator.problem
    parts = parts_to_try(evaluator)
    with evaluator.limited_to(ON_STARTS):
        for devices in parts:
            if evaluator.exhausted or evaluator.seconds + seconds > (evaluator.seconds_limit or np.inf):
                return
            part = on_devices(problem, devices)
            if evaluator.best_fits and part.lower_bound_us >= evaluator.best_score:
                continue
            began = evaluator.seconds
            with evaluator.confined(part, devices) as inner:
                rules(inner)
            seconds = evaluator.seconds - began


@contextmanager
def on_best_part(evaluator: Evaluator) -> Iterator[Evaluator | None]:
    """Within it an evaluator for a search on the smallest part that the best placement so far is on; None = on all.

    Halves of equal devices don't count: on those a search finds out by itself which it needs.
    """
    best = evaluator.best
    used = set() if best is None else set(np.unique(best).tolist())
    around = [devices for devices in subclusters(evaluator.problem.cluster) if used and used <= set(devices)]
    if not around or evaluator.exhausted:
        yield None
        return
    devices = min(around, key=len)
    part = on_devices(evaluator.problem, devices)
    with evaluator.limited_to(ON_SEARCH), evaluator.confined(part, devices) as inner:
        yield inner
