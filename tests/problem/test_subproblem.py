import numpy as np
import pytest

from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.problem.subproblem import on_devices
from placeto.simulator.schedule import simulate
from tests.toys import random_graph


@pytest.mark.parametrize("name", ["2x4xv100", "2x8xh100", "2xv100+2xp100", "8xv100", "4xk80"])
def test_a_placement_on_a_part_takes_as_long_as_on_the_whole(name: str) -> None:
    cluster, random = load_cluster(name), np.random.default_rng(0)
    for seed in range(5):
        problem = PlacementProblem(random_graph(seed), cluster)
        devices = tuple(sorted(random.choice(cluster.num_devices, int(random.integers(1, 4)), replace=False).tolist()))
        part = on_devices(problem, devices)
        placement = random.integers(len(devices), size=problem.num_ops)
        on_part, on_all = simulate(part, placement), simulate(problem, np.array(devices)[placement])
        assert on_part.makespan_us == on_all.makespan_us
        assert on_part.start_us.tolist() == on_all.start_us.tolist()
        assert on_part.peak_memory.tolist() == on_all.peak_memory[list(devices)].tolist()
