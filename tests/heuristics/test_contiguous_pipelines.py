"""Pipelines without micro-batches have one stage on each device, as tools that serve models need it."""

import numpy as np
import pytest

from placeto.heuristics import HEURISTICS
from placeto.problem.cluster import Cluster, Device
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem

BLOCKS = 12


def served() -> ComputationGraph:
    """An inference of equal blocks between a large embedding and a head."""
    ops: list[dict[str, object]] = [{"name": "in", "module": "embed", "flops": 1e8, "param_bytes": 4_000_000}]
    for block in range(BLOCKS):
        for part in range(3):
            op = {"name": f"{block}.{part}", "module": f"layers.{block}", "flops": 1e9, "param_bytes": 1_000_000}
            ops.append(op | {"inputs": [[ops[-1]["name"], 0]], "outputs": [100_000]})
    ops[0]["outputs"] = [100_000]
    ops.append({"name": "head", "module": "head", "flops": 1e9, "param_bytes": 2_000_000, "inputs": [["11.2", 0]]})
    return ComputationGraph.from_ops("served", ops, "inference")


@pytest.mark.parametrize("factor", [1.05, 1.2, 1.5, 2.0])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_each_device_has_contiguous_layers(count: int, factor: float) -> None:
    graph = served()
    memory = int(graph.param_bytes.sum() / count * factor)
    devices = tuple(Device(f"d{i}", "v100", 1e13, 1e12, memory) for i in range(count))
    cluster = Cluster("c", devices, np.full((count, count), 1e4), np.zeros((count, count)))
    plan = HEURISTICS["pipeline"](PlacementProblem(graph, cluster)).plan
    assert plan is None or not plan.interleaved
