"""Searches that only descend: hill climbing, and iterated local search.

Legend: G groups, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.heuristics.local_search.local_search import LocalSearch
from placeto.heuristics.local_search.moves import MOVES
from placeto.simulator.evaluator import Evaluator

CLIMBING = ("random", "swap", "set", "part")
"""Kinds of moves of hill climbing. Iterated local search proposes all kinds."""
KICKED = 0.03
"""Share of the groups that are moved at random before a new descent."""


def climb(evaluator: Evaluator, rng: np.random.Generator) -> None:
    """Hill climbing: random moves from the best placement of the constructive placers, kept unless they are worse.

    It moves groups, and sets of groups such as modules. It ends early after `KNOWN` proposals in a row
    of which none can be better than the placement so far.
    """
    LocalSearch(evaluator, evaluator.best_groups[0], CLIMBING, rng).run()


def iterate(evaluator: Evaluator, rng: np.random.Generator) -> None:
    """Iterated local search: descend, move some groups or a module at random, descend again; keep the better."""
    search = LocalSearch(evaluator, evaluator.best_groups[0], MOVES, rng)
    groups, devices = evaluator.groups.num_groups, evaluator.problem.num_devices
    patience = groups * (devices - 1)  # as many proposals in a row without an improvement as there are single moves
    home, home_score = search.device.copy(), search.score
    while not evaluator.exhausted:
        search.run(patience=patience)
        if search.score <= home_score:
            home, home_score = search.device.copy(), search.score
        if not evaluator.exhausted:
            search.restart(_kicked(home, evaluator, rng))


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
