"""Looking on while placers work."""

import time

import pytest

from placeto.heuristics import HEURISTICS
from placeto.heuristics.local_search.starts import best_cheap
from placeto.placers import load_placer
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.observer import Observer, Status, observing
from tests.cases import forks


@pytest.mark.parametrize("name", ["multilevel", "placeto"])
def test_it_sees_what_is_at_work_and_what_is_best(name: str) -> None:
    problem, views = forks(6, 8, "4xv100"), list[Status]()
    with observing(Observer(views.append)):
        result = load_placer(name)(problem, simulations=2000, seed=0)
    stages = list(dict.fromkeys(view.stage for view in views))
    assert stages[0] == "heuristics"
    assert stages[1] == ("policy" if name == "placeto" else "search")
    assert [view.share for view in views] == sorted(view.share for view in views)
    assert views[-1].share == pytest.approx(1.0, abs=0.01)
    assert views[-1].best_us == result.makespan_us <= views[-1].heuristic_us < problem.single_device_us
    heuristics = Evaluator(problem)
    best_cheap(heuristics)
    assert views[-1].heuristic_us == heuristics.best_score  # of all heuristics, not of the last
    unobserved = load_placer(name)(problem, simulations=2000, seed=0)
    assert (unobserved.makespan_us, unobserved.simulations) == (result.makespan_us, result.simulations)


def test_a_placer_that_gains_nothing_ends_where_that_is_asked() -> None:
    problem = forks(2, 3, "2xp100")  # 64 placements: the best is found at once
    with observing(Observer(patience=0.3)):
        result = HEURISTICS["anneal"](problem, simulations=20_000, seed=0)
    assert 6_000 <= result.simulations <= 8_000  # in chunks of 1,000
    HEURISTICS["multilevel"](problem, simulations=2_000, seed=0)  # kernels are compiled here, not within the seconds
    began = time.perf_counter()
    with observing(Observer(patience=0.05)):
        in_time = HEURISTICS["multilevel"](problem, seconds=20.0, seed=0)
    assert time.perf_counter() - began < 10.0
    assert in_time.makespan_us == result.makespan_us


def test_nobody_looks_on_afterwards() -> None:
    views: list[Status] = []
    with pytest.raises(ZeroDivisionError), observing(Observer(views.append)):
        raise ZeroDivisionError
    HEURISTICS["anneal"](forks(2, 3, "2xp100"), simulations=50)
    assert views == []
