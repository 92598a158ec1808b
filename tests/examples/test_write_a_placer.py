"""The placer of the example keeps its budget, is better than one device, and gives the same again by the same seed."""

import runpy
from pathlib import Path

from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from tests.toys import random_graph

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "write_a_placer.py"))


def test_the_placer_keeps_its_budget_and_improves() -> None:
    problem = PlacementProblem(random_graph(1, 60), load_cluster("2xp100"))
    place = EXAMPLE["one_by_one"]
    result = place(problem, simulations=80, seed=3)
    assert result.simulations == 80
    assert result.makespan_us == result.schedule().makespan_us < problem.single_device_us
    assert (place(problem, simulations=80, seed=3).placement == result.placement).all()
    assert place(problem, simulations=20, seed=3).makespan_us >= result.makespan_us


def test_it_is_compared_with_others() -> None:
    found = EXAMPLE["main"]("ptb:test:0", "4xv100", 60)
    assert set(found) == {"one by one", "etf", "hillclimb", "placeto"}
    assert found["placeto"] <= found["etf"]
