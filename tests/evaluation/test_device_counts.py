import pytest

from placeto.evaluation.device_counts import DeviceCount, advice, device_counts, device_sets, worth_using
from placeto.placers import load_placer
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from tests.toys import fork_of_chains


def of(*makespans: float, fits: int = 0) -> list[DeviceCount]:
    """On 1, 2, 4, ... devices; those from number `fits` on hold the model."""
    return [DeviceCount(2**i, us, i >= fits) for i, us in enumerate(makespans)]


def test_more_devices_must_save_a_twentieth() -> None:
    assert worth_using(of(100.0, 96.0, 96.0)) == 1
    assert worth_using(of(100.0, 96.0, 92.0)) == 2
    assert worth_using(of(100.0, 60.0, 59.0, 58.0)) == 2
    assert worth_using(of(100.0, 100.0, 40.0)) == 4
    assert worth_using(of(100.0, 100.0, 100.0, fits=1)) == 2
    assert worth_using(of(100.0, 100.0, fits=9)) == 1
    assert advice(of(100.0, 60.0, 59.0)) == "2 of the 4 devices are worth using: more save less than 5 % of the step."
    assert advice(of(100.0, 99.0)).startswith("One device is worth using")
    assert advice(of(100.0, 60.0)).startswith("All 2 devices are worth using")
    assert advice(of(100.0)) == "There is one device to use."


def test_the_closest_and_fastest_devices_come_first() -> None:
    assert [len(devices) for devices in device_sets(load_cluster("2x8xh100"))] == [1, 2, 4, 8, 16]
    assert device_sets(load_cluster("cpu+1xh100")) == [(1,), (0, 1)]
    assert device_sets(load_cluster("2xv100")) == [(0,), (0, 1)]


def test_a_device_for_each_chain_is_worth_using() -> None:
    """Four chains of 30 us: on one device 120 us, on two 60, on four 30, and on eight no less."""
    counts = device_counts(fork_of_chains(4, 3, 8), load_placer("multilevel"), 100, 31.0, True)
    assert [count.devices for count in counts] == [1, 2, 4, 8]
    assert [count.makespan_us for count in counts] == pytest.approx([120.0, 60.0, 30.0, 30.0])
    assert worth_using(counts) == 4


def test_what_is_known_counts_and_memory_comes_first() -> None:
    ops = [{"name": f"o{i}", "time_us": {"*": 10.0}, "outputs": [8], "param_bytes": 3 * 10**9} for i in range(4)]
    problem = PlacementProblem(ComputationGraph.from_ops("large", ops), load_cluster("2xp100"))
    counts = device_counts(problem, load_placer("multilevel"), 50, 1.0, True)
    assert [count.fits for count in counts] == [False, True]
    assert counts[1].makespan_us == 1.0
    assert worth_using(counts) == 2
