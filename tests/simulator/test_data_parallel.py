from dataclasses import replace

import numpy as np
import pytest

from placeto.problem.cluster import SharedLink, load_cluster
from placeto.problem.costs.collectives import HOP, SHARE, START_US, collective_us
from placeto.problem.problem import PlacementProblem
from placeto.simulator.tool_steps.data_parallel import best_ring, data_parallel
from tests.cases import problem_of
from tests.toys import toy_cluster, work


def two_ops(mode: str = "training", devices: int = 4, memory: int = 10**12) -> PlacementProblem:
    ops = [
        {"name": "a", "param_bytes": 600, "outputs": [10], **work(1000.0)},
        {"name": "b", "param_bytes": 200, "inputs": [["a", 0]], "outputs": [30], **work(500.0)},
    ]
    return problem_of(ops, toy_cluster(devices, memory=memory), mode)


def on(problem: PlacementProblem, **fields: object) -> PlacementProblem:
    """The problem on a cluster with other fields."""
    return PlacementProblem(problem.graph, replace(problem.cluster, **fields))  # type: ignore[arg-type]


def test_a_step_of_four_replicas() -> None:
    """Six rounds of 200 bytes at 1 byte/us, of which a share is reached, beside 1,500 us of computing."""
    step, sum_us = data_parallel(two_ops()), collective_us("all_reduce", 800, 4, 1.0, 0.0)
    assert sum_us == pytest.approx(START_US + 1200.0 / SHARE)
    assert (step.replica_us, step.gradient_bytes, step.batches) == (1500.0, 800, 4)
    assert (step.all_reduce_us, step.least_us, step.most_us) == pytest.approx((sum_us, 1500.0, 1500.0 + sum_us))
    assert step.peak_memory.tolist() == [4 * 800 + 10 + 30] * 4
    assert step.gain(1350.0) == pytest.approx((5400.0 / (1500.0 + sum_us), 3.6))


def test_what_changes_a_step() -> None:
    """Latency counts in every round, the slowest device decides; inference and one device send nothing."""
    slow = on(two_ops(), latency_us=np.full((4, 4), 7.0))
    assert data_parallel(slow).all_reduce_us == pytest.approx(collective_us("all_reduce", 800, 4, 1.0, 7.0))
    assert data_parallel(two_ops("inference")).most_us == data_parallel(two_ops(devices=1)).most_us == 1500.0
    assert [data_parallel(two_ops(memory=memory)).fits for memory in (3239, 3240)] == [False, True]
    assert data_parallel(PlacementProblem(two_ops().graph, toy_cluster(speeds=(1.0, 0.5)))).replica_us == 3000.0


def test_the_ring_goes_around_slow_links() -> None:
    problem = two_ops()
    bandwidth = np.full((4, 4), 10.0)
    bandwidth[0, 1] = bandwidth[1, 0] = bandwidth[2, 3] = bandwidth[3, 2] = 1.0
    ring, time_us = best_ring(on(problem, bandwidth=bandwidth), 400)
    assert time_us == pytest.approx(collective_us("all_reduce", 400, 4, 10.0, 0.0))
    assert {frozenset(pair) for pair in zip(ring, ring[1:] + ring[:1], strict=True)} == {
        frozenset(pair) for pair in ((0, 2), (2, 1), (1, 3), (3, 0))
    }


def test_what_shares_a_link_divides_it() -> None:
    """Two of the three sends of a ring always cross a link that all but the first and last share.

    The fixed part of a hop is no part of this: all but the first of them go by while another sends.
    """
    link = SharedLink("switch", 1.0, ("gpu:0", "gpu:1", "gpu:2"), ("gpu:0", "gpu:1", "gpu:2"))
    assert best_ring(on(two_ops(devices=3), shared_links=(link,)), 300)[1] == pytest.approx(
        START_US / 4 + 4 * 3 * 100.0 / SHARE
    )


@pytest.mark.parametrize("name", ["2x4xv100", "2x8xh100"])
def test_hosts_in_their_order_cross_each_card_once(name: str) -> None:
    cluster = load_cluster(name)
    ring, time_us = best_ring(PlacementProblem(two_ops().graph, cluster), 10**9)
    devices = cluster.num_devices
    card = min(link.bandwidth for link in cluster.shared_links)
    rounds = 2 * (devices - 1)
    ring_us = START_US + rounds * (HOP * cluster.latency_us.max() + 1e9 / devices / (SHARE * card))
    assert time_us == pytest.approx(ring_us, rel=1e-6)
    assert sorted(ring) == list(range(devices))


def test_transfers_of_the_ring_are_those_of_the_simulator() -> None:
    """On a K80, a link is busy for 25 us after each of the two transfers of half the bytes at 7,600 bytes/us."""
    problem = PlacementProblem(two_ops().graph, load_cluster("2xk80"))
    assert best_ring(problem, 15_200_000)[1] == pytest.approx(START_US + 2 * (1000.0 / SHARE + 25.0))
