"""Op times on groups of boards."""

import numpy as np
import pytest

from placeto.problem.cluster import load_cluster
from placeto.problem.costs import EFFICIENCY
from placeto.problem.costs.collectives import collective_us
from placeto.problem.costs.group_costs import in_groups
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem

MB = 2**20
# what each collective of a tensor of 4 MB reads and writes, in a group of 4
ACCESSED = {
    "all_reduce": 8 * MB,
    "all_gather_into_tensor": 5 * MB,
    "reduce_scatter_tensor": 5 * MB,
    "all_to_all_single": 8 * MB,
}
KINDS = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"


def test_collectives_take_the_time_of_the_group() -> None:
    boards = load_cluster("8xh100")
    cluster, costs = in_groups(boards, EFFICIENCY, 4)
    records = [
        {"name": name, "type": f"_c10d_functional.{name}", "bytes_accessed": size} for name, size in ACCESSED.items()
    ]
    graph = ComputationGraph.from_ops("g", [{"name": "mm", "type": "aten.mm", "flops": 1e9}, *records], "training")
    problem = PlacementProblem(graph, cluster, costs)
    alone = PlacementProblem(graph, boards)
    assert np.array_equal(problem.op_time[0], alone.op_time[0, :2])
    link = boards.bandwidth[0, 1], boards.latency_us[0, 1]
    expected = [collective_us(kind, 4 * MB, 4, *link) for kind in KINDS]
    assert problem.op_time[1:].tolist() == pytest.approx(np.array([expected, expected]).T)
    assert problem.width == 4
    assert alone.width == 1
    assert problem.hash != PlacementProblem(graph, cluster).hash


def test_one_board_a_device_changes_nothing() -> None:
    boards = load_cluster("8xh100")
    assert in_groups(boards, EFFICIENCY, 1) == (boards, EFFICIENCY)
