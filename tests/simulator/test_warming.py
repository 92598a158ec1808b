"""Placers are ready when their seconds begin."""

from typing import Any

import pytest

from placeto.heuristics import HEURISTICS
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator import warming
from placeto.simulator.observer import Observer, current, observing
from placeto.simulator.warming import warm_up


def on(cluster: str, *, several: bool = False) -> PlacementProblem:
    """A problem on a cluster, in micro-batches or not."""
    return warming._tiny(load_cluster(cluster), several)


class Placer:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, problem: PlacementProblem, **budget: Any) -> None:
        assert current() is None
        self.asked.append(budget)


def test_a_placer_is_made_ready_once_for_each_sort_of_cluster() -> None:
    placer = Placer()
    with observing(Observer()):
        warm_up(placer, on("4xv100"), None, 3.0)
        warm_up(placer, on("8xv100"), None, 5.0)
        warm_up(placer, on("4xv100"), 100, None)
    assert placer.asked == [{"simulations": 256, "seed": 0}]
    warm_up(placer, on("4xk80"), None, 3.0)
    assert len(placer.asked) == 2
    warm_up(placer, on("4xk80", several=True), None, 3.0)
    assert len(placer.asked) == 3


def test_more_simulations_than_before_are_made_ready_for() -> None:
    placer, problem = Placer(), on("4xv100")
    for simulations in (10, 5, 20, 5000, 6000, None, 10):
        warm_up(placer, problem, simulations, None)
    assert [budget["simulations"] for budget in placer.asked] == [10, 20, 256, None]


@pytest.mark.parametrize("name", ["multilevel", "etf"])
def test_heuristics_are_made_ready_before_their_seconds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("placeto.heuristics.warm_up", lambda placer, *budget: made.append((placer, budget)))
    problem = on("2xp100")
    HEURISTICS[name](problem, seconds=0.05)
    HEURISTICS[name](problem, simulations=5)
    assert made == [(HEURISTICS[name], (problem, None, 0.05))]
