"""The experiment on simulated and measured steps, small."""

import numpy as np

from experiments.fidelity import placements
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from tests.toys import random_graph


def test_placements_are_distinct() -> None:
    problem = PlacementProblem(random_graph(1, 60), load_cluster("2xcpu-core"))
    found = placements(problem, 25, 0)
    assert len({result.placement.tobytes() for result in found}) == 25
    assert len(np.unique(found[0].placement)) == 1
    assert all(result.makespan_us == result.schedule().makespan_us for result in found)
