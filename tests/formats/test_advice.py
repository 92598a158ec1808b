import numpy as np
import pytest

from placeto.formats.advice import data_parallel_advice
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.tool_steps.data_parallel import DataParallel, data_parallel
from tests.toys import toy_cluster, work


def problem_of(mode: str = "training", devices: int = 2, memory: int = 10**9) -> PlacementProblem:
    ops = [{"name": "a", "param_bytes": 200, "outputs": [10], **work(1000.0)}]
    return PlacementProblem(ComputationGraph.from_ops("one", ops, mode), toy_cluster(devices, memory=memory))


def advice(problem: PlacementProblem, makespan_us: float) -> str:
    return data_parallel_advice(problem, makespan_us, data_parallel(problem))


@pytest.mark.parametrize(
    ("makespan_us", "sentence"),
    [
        (900.0, "gives 1.41 to 1.80 times the samples a second and fits, with 2 batches in 1.00 ms to 1.28 ms: use it"),
        (550.0, "gives 0.86 to 1.10 times the samples a second and fits, with 2 batches in 1.00 ms to 1.28 ms: which"),
        (400.0, "gives 0.63 to 0.80 times the samples a second and fits, with 2 batches in 1.00 ms to 1.28 ms: the pl"),
    ],
)
def test_who_should_rather_use_it(makespan_us: float, sentence: str) -> None:
    assert f"Data parallelism {sentence}" in advice(problem_of(), makespan_us)


def test_what_does_not_fit_inference_and_one_device() -> None:
    said = advice(problem_of(memory=500), 900.0)
    assert said == "Data parallelism doesn't fit: a replica needs 810 B on gpu:0 of 500 B."
    said = advice(problem_of("inference"), 1000.0)
    assert said.startswith("A replica on each device gives 2.00 times the samples a second and fits, with 2 batches in")
    assert said.endswith("use it, unless it is the time of a single answer that counts.")
    assert advice(problem_of(devices=1), 1000.0) == "There is one device: nothing to place, and nothing to replicate."


@pytest.mark.parametrize(("makespan_us", "step_us"), [(0.0, 0.0), (50.0, 100.0), (50.001, 100.0), (49.999, 100.0)])
def test_as_fast_as_the_placement(makespan_us: float, step_us: float) -> None:
    said = data_parallel_advice(
        problem_of(), makespan_us, DataParallel(step_us, 0.0, 0, (0, 1), np.zeros(2, np.int64), True)
    )
    assert "gives 1.00 times the samples a second and fits" in said
    assert said.endswith(": as many as the placement.")
