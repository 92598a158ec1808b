"""Further published steps, and what is predicted for them."""

import pytest

from experiments.cost_models import alone_ms
from experiments.held_out_steps import BOARDS, Step, steps
from experiments.published_models import MODELS
from placeto.problem.cluster.devices import V100
from placeto.problem.costs import ROOFLINE
from placeto.problem.graph import ComputationGraph


def test_the_steps_are_those_of_the_sources() -> None:
    found = list(steps())
    assert len(found) == 85
    assert {step.board for step in found} == set(BOARDS)
    assert {step.model for step in found} <= set(MODELS)
    assert found[0] == Step(
        "Lambda", "V100 16 GB", "fp16", "channels first", "resnet50", 64, pytest.approx(76.83, abs=0.01)
    )
    assert {step.precision for step in found if step.board == "RTX 8000"} == {"fp16", "half", "fp32"}, "it has no tf32"
    assert sum(step.layout == "channels last" for step in found) == 8


def test_a_step_runs_op_after_op() -> None:
    ops = [{"name": name, "type": "aten.add", "bytes_accessed": 900e6} for name in "ab"]
    time_ms, overhead_ms = alone_ms(V100, ROOFLINE, ComputationGraph.from_ops("g", [*ops, {"name": "c"}]))
    assert time_ms == pytest.approx(2.0)
    assert overhead_ms == pytest.approx(2 * V100.overhead_us / 1e3)
