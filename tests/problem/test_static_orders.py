"""Static orders: what each of them runs first, by hand."""

import numpy as np
import pytest

from placeto.problem.cluster import STATIC_ORDERS, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

STAGES, MICRO_BATCHES, TIME = 2, 8, 100.0


def two_stages() -> ComputationGraph:
    """Forward ops f0, f1 and backward ops b1, b0 of each micro-batch, each of 100 us, tensors of no bytes."""
    ops = []
    for m in range(MICRO_BATCHES):
        before: list[list[object]] = []
        for kind, name in (("forward", "f0"), ("forward", "f1"), ("backward", "b1"), ("backward", "b0")):
            ops.append({"name": f"{name}.{m}", "inputs": before, "outputs": [1000 if kind == "forward" else 0],
                        "time_us": {"*": TIME}, "micro_batch": m, "pass": kind})  # fmt: skip
            before = [[f"{name}.{m}", 0]]
            if name == "b1":
                before.append([f"f0.{m}", 0])
            if name == "f1":
                before.append([f"f0.{m}", 0])
    return ComputationGraph.from_ops("two stages", ops)


GRAPH = two_stages()
STAGE = np.array([name[1] == "1" for name in GRAPH.op_names]).astype(np.int64)


def start(order: str) -> dict[str, float]:
    problem = PlacementProblem(GRAPH, load_cluster("2xv100"), dispatch=order)
    schedule = simulate(problem, STAGE)
    return dict(zip(GRAPH.op_names, schedule.start_us.tolist(), strict=True))


def test_longest_path_first_runs_all_forward_passes_first() -> None:
    began = start("priority")
    assert max(began[f"f0.{m}"] for m in range(MICRO_BATCHES)) < min(began[f"b0.{m}"] for m in range(MICRO_BATCHES))


def test_1f1b_alternates() -> None:
    began = start("1f1b")
    second = sorted((time, name) for name, time in began.items() if name[1] == "1")
    assert [name for _, name in second] == [f"{kind}1.{m}" for m in range(MICRO_BATCHES) for kind in "fb"]
    assert began["b0.0"] < began["f0.4"]


@pytest.mark.parametrize("order", ["earlier-0.2", "1f1b"])
def test_earlier_micro_batches_first_holds_fewer_activations(order: str) -> None:
    cluster = load_cluster("2xv100")
    least, most = (simulate(PlacementProblem(GRAPH, cluster, dispatch=d), STAGE) for d in (order, "priority"))
    assert least.peak_memory[0] < most.peak_memory[0] == 1000 * MICRO_BATCHES


def test_without_micro_batches_orders_are_the_longest_path_first() -> None:
    ops = [{"name": n, "time_us": {"*": t}} for n, t in (("a", 1.0), ("b", 3.0), ("c", 2.0))]
    graph = ComputationGraph.from_ops("three", ops)
    for order in STATIC_ORDERS:
        assert PlacementProblem(graph, load_cluster("2xv100"), dispatch=order).priority.tolist() == [2, 0, 1]


def test_a_problem_under_another_order_is_made_once() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("2xv100"))
    other = problem.under("1f1b")
    assert other.dispatch == "1f1b"
    assert problem.under("1f1b") is other
    assert other.under("priority") is problem
    assert other.hash != problem.hash
    with pytest.raises(ValueError, match=r"dispatch must be one of fifo, list, priority, .*, not 'random'"):
        problem.under("random")
