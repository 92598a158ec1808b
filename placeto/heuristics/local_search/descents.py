"""Searches that only descend: hill climbing, and iterated local search.

Legend: G groups, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.heuristics.local_search.annealing import MIX
from placeto.heuristics.local_search.local_search import LocalSearch
from placeto.simulator.evaluator import Evaluator

CLIMBING = {"random": 0.6, "swap": 0.1, "set": 0.15, "part": 0.15}
"""Probability of each kind of move of hill climbing; iterated local search moves as annealing does."""
WORSE = 0.002
"""Iterated local search goes on from a descent that ends so much above its best."""
KICKED = 0.03
"""Share of the groups that are moved at random to begin a new descent."""


def climb(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """Hill climbing: random moves of groups and modules from the best cheap placement, kept unless they are worse.

    Ends early where no single move is left to try.
    """
    LocalSearch(evaluator, start, CLIMBING, rng).run()


def iterate(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """Iterated local search: descend, move some groups or a module at random, descend again; keep the better."""
    search = LocalSearch(evaluator, start, MIX, rng)
    groups, devices = evaluator.groups.num_groups, evaluator.problem.num_devices
    patience = groups * (devices - 1)  # as many proposals in a row without an improvement as there are single moves
    home, home_score = search.device.copy(), search.score
    while not evaluator.exhausted:
        search.run(patience=patience)
        if search.score <= home_score * (1.0 + WORSE):
            home, home_score = search.device.copy(), search.score
        if not evaluator.exhausted:
            search.restart(_kicked(home, evaluator, rng))


def _kicked(device: np.ndarray, evaluator: Evaluator, rng: np.random.Generator) -> np.ndarray:
    """A placement (G,) with a few groups moved at random, or a whole set of them together."""
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
