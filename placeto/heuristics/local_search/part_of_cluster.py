"""Constructive placers on parts of the cluster, since in a large cluster devices of other hosts often gain nothing.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placeto.problem.cluster.subclusters import halves, subclusters
from placeto.problem.subproblem import on_devices, simulates_alike
from placeto.simulator.evaluator import Evaluator

ON_STARTS = 0.15
"""Upper limit of the share of the remaining budget for constructive placers on parts of the cluster."""
FOR_HALVES = 500
"""With fewer simulations left than this, halves of equal devices are not tried, only parts by links and by kinds."""


def parts_to_try(evaluator: Evaluator) -> list[tuple[int, ...]]:
    """The devices of each part of the cluster to try: those of `subclusters`, and with a large budget `halves`, too.

    Parts are left out on which the simulator would give placements other makespans than on the whole cluster.
    """
    problem = evaluator.problem
    limited = evaluator.limit is not None or evaluator.seconds_limit is not None
    large = limited and evaluator.expected >= FOR_HALVES
    parts = [*subclusters(problem.cluster), *(halves(problem.cluster) if large else ())]
    return [devices for devices in parts if simulates_alike(problem, devices)]


def start_on_parts(evaluator: Evaluator, rules: Callable[[Evaluator], None], seconds: float) -> None:
    """Run constructive placers on parts of the cluster, within `ON_STARTS` of the remaining budget.

    A part is left out if its lower bound isn't below the best score so far.

    Args:
        evaluator: keeps the best placement.
        rules: runs the placers on the evaluator of a part.
        seconds: that the placers took on the whole cluster. No part is begun if less time is left than the
            last run took.
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
