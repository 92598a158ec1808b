"""Searches that only descend: hill climbing, and iterated local search.

Legend: G groups, D devices.
"""

from __future__ import annotations

import math

import numpy as np

from placeto.heuristics.local_search.local_search import LocalSearch
from placeto.simulator.evaluator import Evaluator

KICKED = 0.03
"""Share of the groups that are moved at random before a new descent."""


def climb(evaluator: Evaluator, rng: np.random.Generator) -> None:
    """Hill climbing: random moves from the best placement of the constructive placers, kept unless they are worse.

    It ends early after `KNOWN` proposals in a row of which none can be better than the placement so far.
    """
    LocalSearch(evaluator, evaluator.best_groups[0], rng).run()


def iterate(evaluator: Evaluator, rng: np.random.Generator) -> None:
    """Iterated local search: descend, move some groups or a module at random, descend again; keep the better.

    A descent takes as many simulations as there are moves of single groups.
    """
    moves = evaluator.groups.num_groups * (evaluator.problem.num_devices - 1)
    start = home = evaluator.best_groups[0]
    home_score = math.inf
    while not evaluator.exhausted:
        with evaluator.limited(evaluator.simulations + 1 + moves, None):
            search = LocalSearch(evaluator, start, rng)
            search.run()
        if search.score <= home_score:
            home, home_score = search.device, search.score
        start = _kicked(home, evaluator, rng)


def _kicked(device: np.ndarray, evaluator: Evaluator, rng: np.random.Generator) -> np.ndarray:
    """A placement (G,) with a few groups, or all groups of a set, moved to other devices at random."""
    sets, devices = evaluator.groups.sets, evaluator.problem.num_devices
    kicked = device.copy()
    if sets and rng.random() < 0.5:
        members = sets[rng.integers(len(sets))]
        together = rng.random() < 0.5
        kicked[members] = rng.integers(devices) if together else (kicked[members] + rng.integers(1, devices)) % devices
    else:
        count = min(len(device), max(2, round(KICKED * len(device))))
        chosen = rng.choice(len(device), count, replace=False)
        kicked[chosen] = rng.integers(devices, size=count)
    return kicked
