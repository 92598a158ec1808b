"""All ops on one device."""

from __future__ import annotations

import numpy as np

from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate


def best_single(problem: PlacementProblem) -> Schedule | None:
    """Return the fastest schedule with all ops on one device that fits; None if none does."""
    for device in np.argsort(problem.alone_us, kind="stable"):
        schedule = simulate(problem, np.full(problem.num_ops, device))
        if schedule.fits:
            return schedule
    return None
