"""Predicted against measured steps."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

import experiments
from experiments.cost_models import BOARDS, FIRST, Step, alone_ms, over_constant, predict, summary
from experiments.published_models import MODELS, training_step
from placeto.problem.cluster.boards import V100
from placeto.problem.costs import ROOFLINE
from placeto.problem.graph import ComputationGraph

GRAPH = ComputationGraph.from_ops("g", [{"name": "a", "flops": 15.7e9}, {"name": "b"}, {"name": "c", "flops": 15.7e9}])
PARAMETERS = {  # of torchvision's models
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnext50_32x4d": 25_028_904,
    "vgg16": 138_357_544,
    "alexnet": 61_100_840,
    "squeezenet1_0": 1_248_424,
    "densenet121": 7_978_856,
    "efficientnet_b0": 5_288_548,
}


def steps(count: int = 6) -> list[Step]:
    """Steps of 2 ms and two overheads by roofline, measured as 4 ms or, every third, as 8."""
    measured = [8.0 if number % 3 == 2 else 4.0 for number in range(count)]
    boards = ["V100 SXM2", "P100"]
    return [
        Step(boards[n % 2], "fp32", "conv", f"m{n}", "here", FIRST, ms, GRAPH, None) for n, ms in enumerate(measured)
    ]


def test_a_step_is_its_ops_and_the_overheads_behind_them() -> None:
    step = steps()[0]
    np.testing.assert_allclose(predict([step], ROOFLINE), [[2.0, 2 * BOARDS["V100 SXM2"].overhead_us / 1e3]])
    np.testing.assert_allclose(predict([step._replace(update=GRAPH)], ROOFLINE), [[4.0, 0.02]])
    np.testing.assert_allclose(over_constant(np.array([[2.0, 0.5]]), 0.5), [4.5])


def test_a_step_runs_op_after_op() -> None:
    ops = [{"name": name, "type": "aten.add", "bytes_accessed": 900e6} for name in "ab"]
    graph = ComputationGraph.from_ops("g", [*ops, {"name": "c"}])
    assert alone_ms(V100, ROOFLINE, graph) == pytest.approx((2.0, 2 * V100.overhead_us / 1e3))


def test_further_steps_are_of_known_boards_and_models() -> None:
    with (Path(experiments.__file__).parent / "data" / "further_steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 85
    assert {row["board"] for row in rows} <= BOARDS.keys()
    assert {row["model"].rpartition("_b")[0] for row in rows} <= MODELS.keys()


def test_summary_in_closed_form() -> None:
    ratios = np.array([0.5, 1.0, 1.1, 4.0])
    assert summary(ratios, np.array([6.0, 8.0, 10.0, 12.0])) == ["30.0%", "1.05", "4.00", "1.000"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_published_sizes(name: str) -> None:
    step = training_step(f"{name}_b2")
    count = sum(math.prod(p.shape) for p in step.module.parameters())
    if name in PARAMETERS:
        assert count == PARAMETERS[name]
    assert step.loss(step.module(*step.inputs), *step.targets).shape == ()
