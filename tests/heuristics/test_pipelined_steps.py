"""Placers on steps in micro-batches, on several hosts: what they give is what it says it takes."""

import numpy as np
import pytest

from placeto.errors import PlacerError
from placeto.heuristics import HEURISTICS
from placeto.placers import load_placer
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.captures import chained

GRAPH = chained(4, 512, 8192, 4)


@pytest.mark.parametrize("placer", [name for name in (*HEURISTICS, "placeto") if name != "exact"])
def test_steps_in_micro_batches_are_placed(placer: str) -> None:
    problem = PlacementProblem(GRAPH, load_cluster("2x4xv100"))
    found = load_placer(placer)(problem, simulations=40, seed=0)
    again = simulate(found.problem, found.placement, order=found.order)
    assert again.makespan_us == found.makespan_us
    assert again.placement.tolist() == found.placement.tolist()
    assert problem.lower_bound_us <= found.makespan_us < np.inf
    colours = GRAPH.colocation
    for colour in set(colours[colours >= 0].tolist()):
        assert len(set(found.placement[colours == colour].tolist())) == 1


def test_a_pipeline_is_found() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("4xv100"))
    assert load_placer("multilevel")(problem, simulations=300, seed=0).makespan_us < 0.7 * problem.single_device_us


def test_exact_tries_all_placements_or_refuses() -> None:
    with pytest.raises(PlacerError, match=r"is a step in micro-batches, .* use multilevel"):
        load_placer("exact")(PlacementProblem(GRAPH, load_cluster("8xv100")))
