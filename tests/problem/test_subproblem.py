import numpy as np
import pytest

from placeto.heuristics.local_search.part_of_cluster import parts_to_try
from placeto.problem.cluster import Cluster, Device, load_cluster
from placeto.problem.cluster.subclusters import subclusters
from placeto.problem.problem import PlacementProblem
from placeto.problem.subproblem import on_devices, simulates_alike
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from tests.formats.torch_toys import captured, chain
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


def test_parts_on_which_sums_of_gradients_move_to_other_devices_are_left_out() -> None:
    """Each host has a slow device first or last: the fast ones are gpu:1 and gpu:2 here, gpu:3 and gpu:4 there."""
    host = np.array([0, 0, 0, 1, 1, 1])
    same = host[:, None] == host
    kinds = [("slow", 1e12), ("fast", 2e12), ("fast", 2e12), ("fast", 2e12), ("fast", 2e12), ("slow", 1e12)]
    devices = tuple(Device(f"gpu:{i}", kind, peak, 1e12, 10**9, 2.0) for i, (kind, peak) in enumerate(kinds))
    bandwidth, latency = np.where(same, 12_000.0, 3_000.0), np.where(same, 10.0, 50.0)
    cluster = Cluster("mixed", devices, bandwidth, latency, "unicast", "egress", hosts=tuple(host.tolist()))
    problem = PlacementProblem(captured(chain()), cluster)
    assert (1, 2, 3, 4) in subclusters(cluster)
    for part in subclusters(cluster):
        differ = 0
        for placement in np.random.default_rng(0).integers(len(part), size=(30, problem.num_ops)):
            on_part, on_all = (
                simulate(on_devices(problem, part), placement),
                simulate(problem, np.array(part)[placement]),
            )
            differ += on_part.makespan_us != on_all.makespan_us
        assert (differ > 0) == (not simulates_alike(problem, part)) == (part == (1, 2, 3, 4))
    assert (1, 2, 3, 4) not in parts_to_try(Evaluator(problem))
