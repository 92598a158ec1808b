"""A genetic placer. Placements are recombined with a bias to the better parent, as with biased random keys.

Gonçalves and Resende, "Biased random-key genetic algorithms for combinatorial optimization", 2011; Paliwal et al.,
"Reinforced genetic algorithm learning for optimizing computation graphs" (REGAL), ICLR 2020, place devices with one.
The genes here are devices rather than keys, and half of the time children inherit whole modules.

Legend: G groups, D devices, P people.
"""

from __future__ import annotations

import numpy as np

from placeto.heuristics.local_search.search import search_from_cheap
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult

_PEOPLE = 60
_GENERATIONS = 8  # at least, by having fewer people
_ELITE = 0.25  # share of the people who live on
_BIAS = 0.7  # probability of a gene of the better parent
_MUTATED = 0.7  # share of the children that mutate
_SPREAD = (0.02, 0.05, 0.15, 0.5)  # shares of genes that are random in the first people


def genetic(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Genetic algorithm from the best cheap placement: biased crossover of groups and modules, elite, mutation."""
    return search_from_cheap(evolve, problem, simulations, seconds, seed)


def evolve(evaluator: Evaluator, start: np.ndarray, rng: np.random.Generator) -> None:
    """The method behind `genetic`."""
    devices = evaluator.problem.num_devices
    count = int(min(_PEOPLE, max(8, evaluator.expected / _GENERATIONS)))
    people = np.tile(start, (count, 1))  # (P, G)
    for row in people[1:]:
        _mutate(row, rng.choice(_SPREAD), devices, rng)
    score = evaluator.score_batch(people)
    elite = max(2, int(_ELITE * count))
    while not evaluator.exhausted:
        order = np.argsort(score, kind="stable")
        people, score = people[order], score[order]
        for row in range(elite, count):
            better, other = people[rng.integers(elite)], people[rng.integers(count)]
            child = _cross(better, other, evaluator.groups.sets, rng)
            if rng.random() < _MUTATED or np.array_equal(child, better):
                _mutate(child, 1.5 / len(child), devices, rng)
            people[row] = child
        score[elite:] = evaluator.score_batch(people[elite:])


def _cross(better: np.ndarray, other: np.ndarray, sets: tuple[np.ndarray, ...], rng: np.random.Generator) -> np.ndarray:
    """A child (G,): the better parent with one to three modules, or with some genes, of the other."""
    child = better.copy()
    if sets and rng.random() < 0.5:
        for which in rng.integers(len(sets), size=rng.integers(1, 4)):
            child[sets[which]] = other[sets[which]]
    else:
        taken = rng.random(len(child)) > _BIAS
        child[taken] = other[taken]
    return child


def _mutate(placement: np.ndarray, share: float, devices: int, rng: np.random.Generator) -> None:
    """Place a share of the groups at random, in place."""
    chosen = rng.random(len(placement)) < share
    placement[chosen] = rng.integers(devices, size=int(chosen.sum()))
