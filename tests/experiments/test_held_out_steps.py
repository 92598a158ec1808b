"""Further published steps, and what is predicted for them."""

import pytest

from experiments.cost_models import alone_ms
from placeto.problem.cluster.boards import V100
from placeto.problem.costs import ROOFLINE
from placeto.problem.graph import ComputationGraph


def test_a_step_runs_op_after_op() -> None:
    ops = [{"name": name, "type": "aten.add", "bytes_accessed": 900e6} for name in "ab"]
    time_ms, overhead_ms = alone_ms(V100, ROOFLINE, ComputationGraph.from_ops("g", [*ops, {"name": "c"}]))
    assert time_ms == pytest.approx(2.0)
    assert overhead_ms == pytest.approx(2 * V100.overhead_us / 1e3)
