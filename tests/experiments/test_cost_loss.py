"""What it costs to place by the wrong times."""

import numpy as np
import pytest

from experiments.cost_loss import Noisy
from placeto.problem.cluster import load_cluster
from placeto.problem.costs import ROOFLINE
from placeto.problem.graph import ComputationGraph


def test_noise_has_its_spread_and_is_an_ops_own() -> None:
    graph = ComputationGraph.from_ops("g", [{"name": f"o{i}", "flops": 1e9} for i in range(4000)])
    cluster = load_cluster("2xv100+2xp100")
    factors = np.log(Noisy(ROOFLINE, 0.3, 1).op_time_us(graph, cluster) / ROOFLINE.op_time_us(graph, cluster))
    assert factors.std() == pytest.approx(0.3, rel=0.05)
    assert np.ptp(factors, axis=1).max() < 1e-9
    assert Noisy(ROOFLINE, 0.3, 1).name != Noisy(ROOFLINE, 0.3, 2).name
