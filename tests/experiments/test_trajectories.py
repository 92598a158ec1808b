from dataclasses import replace
from pathlib import Path

from experiments.harness import problem_of
from experiments.trajectories import Cell, Clock, Met, Placer, Trajectory, run_cells, trajectory
from placeto.problem.problem import PlacementProblem

CELL = Cell("ptb:validation:0", "2xv100", "falling", 0, 10)


def falling(problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    """Three better placements, the last one after the budget."""
    return Met(50.0, True, 12, [(1, 0.0, 100.0), (8, 0.0, 70.0), (12, 0.0, 50.0)])


def failing(problem: PlacementProblem, budget: int, seed: int, clock: Clock) -> Met:
    """Nothing can be placed."""
    raise ValueError("out of luck")


def test_what_comes_after_the_budget_does_not_count() -> None:
    found = trajectory(CELL, Placer(falling))
    assert [(count, us) for count, _, us in found.points] == [(1, 100.0), (8, 70.0)]
    assert (found.best_us, found.placements) == (70.0, 12)
    assert found.reach(100.0)[0] == 1
    assert found.reach(70.0)[0] == found.reach(99.0)[0] == 8
    assert found.reach(69.0) == (float("inf"), float("inf"))


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    placers = {"falling": Placer(falling)}
    first = run_cells([CELL], placers, tmp_path, 1)
    (path,) = tmp_path.iterdir()
    assert run_cells([CELL], {"falling": Placer(failing)}, tmp_path, 1) == first
    assert isinstance(first[CELL], Trajectory)
    other = Placer(falling, lambda problem: {"hidden": 8})
    assert CELL.path(tmp_path, other) != path, "of other settings"
    assert replace(CELL, cluster="4xv100").path(tmp_path, placers["falling"]) != path
    assert problem_of(CELL.graph, CELL.cluster).num_devices == 2
