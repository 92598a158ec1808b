"""Schedules worked out by hand: each dispatch, shared links, links without contention."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from placeto.errors import ClusterError, PlacementError
from placeto.formats.placement import PlacementFile, load_placement, save_placement
from placeto.placers import load_placer
from placeto.problem.cluster import Cluster, Device, SharedLink, load_cluster
from placeto.problem.dispatch import fixed_edges, order_of_lists
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.cases import problem_of
from tests.reference import random_problem
from tests.toys import linked


def plain_cluster(size: int, link: str = "egress", shared: tuple[SharedLink, ...] = ()) -> Cluster:
    """Devices d0, d1... without overhead, links of 1000 bytes/us without latency."""
    devices = [Device(f"d{n}", "x", 1e12, 1e12, 10**9) for n in range(size)]
    return linked(devices, 1000.0, link=link, shared_links=shared)


def op(name: str, time_us: float, *inputs: str, outputs: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """An op; of an input "a.1" output 1 of op a."""
    read = [[text.split(".")[0], int(f"{text}.0".split(".")[1])] for text in inputs]
    return {"name": name, "time_us": {"*": time_us}, "inputs": read, "outputs": list(outputs)}


# s makes x and y ready; what waits for y, over a transfer of 4 us, is long
FORK = [op("s", 1.0), op("x", 2.0, "s"), op("y", 3.0, "s", outputs=(4000,)), op("z", 10.0, "y")]


@pytest.mark.parametrize(
    ("dispatch", "start", "makespan"),
    [
        ("fifo", [0.0, 1.0, 3.0, 10.0], 20.0),  # x became ready with y, and stands before it
        ("priority", [0.0, 4.0, 1.0, 8.0], 18.0),  # y first: 13 us of work hang on it, 2 us on x
        ("list", [0.0, 1.0, 3.0, 10.0], 20.0),  # as the program has it
    ],
)
def test_each_dispatch(dispatch: str, start: list[float], makespan: float) -> None:
    problem = problem_of(FORK, plain_cluster(2), dispatch=dispatch)
    schedule = simulate(problem, np.array([0, 0, 0, 1]))
    assert (schedule.start_us.tolist(), schedule.makespan_us) == (start, makespan)


def test_a_list_waits_for_its_head() -> None:
    """d1 could run w from the start; its list wants z before."""
    graph = ComputationGraph.from_ops("wait", [*FORK, op("w", 5.0)])
    problem, placement = PlacementProblem(graph, plain_cluster(2)), np.array([0, 0, 0, 1, 1])
    assert simulate(problem, placement).start_us.tolist() == [0.0, 4.0, 1.0, 8.0, 0.0]
    listed = simulate(problem, placement, order=np.array([0, 2, 1, 3, 4]))
    assert listed.start_us.tolist() == [0.0, 4.0, 1.0, 8.0, 18.0]
    assert [ops.tolist() for ops in listed.device_order] == [[0, 2, 1], [3, 4]]


def test_what_contradicts_is_refused_in_one_line() -> None:
    graph = ComputationGraph.from_ops("fork", FORK)
    problem, placement = PlacementProblem(graph, plain_cluster(2)), np.zeros(4, np.int64)
    with pytest.raises(
        PlacementError, match="op 'y' comes before 's', which it needs: the order contradicts the graph"
    ):
        simulate(problem, placement, order=np.array([2, 0, 1, 3]))
    with pytest.raises(PlacementError, match="an order of 'fork' must have each of its 4 ops once"):
        simulate(problem, placement, order=np.array([0, 1, 2, 2]))
    with pytest.raises(
        ClusterError, match=r"shared_links\['card'\]: no transfer crosses it: it needs senders and receivers"
    ):
        plain_cluster(2, shared=(SharedLink("card", 1.0, ("d0",), ("d0",)),))
    with pytest.raises(ClusterError, match="shared_links need unicast transfers that wait, not unicast over free"):
        plain_cluster(2, "free", (SharedLink("card", 1.0, ("d0",), ("d1",)),))


def test_the_order_is_in_the_placement_file(tmp_path: Path) -> None:
    problem, _ = random_problem(np.random.default_rng(3), "unicast", "pair", "priority")
    result = load_placer("heft")(problem)
    save_placement(result, tmp_path / "p.json")
    file = load_placement(tmp_path / "p.json")
    placement, order = file.devices(problem.graph, problem.cluster), file.op_order(problem.graph)
    schedule = simulate(problem, placement, order=order)
    lists = [[problem.graph.op_names[i] for i in ops] for ops in schedule.device_order]
    assert dict(zip(problem.cluster.device_names, lists, strict=True)) == file.order
    assert file.makespan_us == result.makespan_us == result.schedule().makespan_us


def test_a_bad_order_in_a_placement_file_is_refused() -> None:
    graph = ComputationGraph.from_ops("fork", FORK)
    file = PlacementFile({"s": "d0", "x": "d0", "y": "d0", "z": "d1"}, order={"d0": ["s", "x", "y"], "d1": ["z"]})
    assert file.op_order(graph) is not None
    for order, message in (
        ({"d0": ["y", "s", "x"], "d1": ["z"]}, "op 's' would wait for itself: the order contradicts the graph"),
        ({"d0": ["s", "x"], "d1": ["z"]}, "op 'y' stands 0 times in the lists of devices, not once"),
        ({"d0": ["s", "x", "q"]}, "op 'q' in the order of 'd0' is not in the graph"),
        ({"d1": ["s"]}, "op 's' in the order of 'd1' is placed elsewhere"),
    ):
        with pytest.raises(PlacementError, match=f"^{message}$"):
            replace(file, order=order).op_order(graph)


def test_list_schedulers_keep_their_orders_where_these_are_better() -> None:
    """Over random problems: HEFT's order wins somewhere, and never costs anything."""
    rng = np.random.default_rng(0)
    kept = 0
    for _ in range(30):
        problem, _ = random_problem(rng, "unicast", "pair", "priority")
        result = load_placer("heft")(problem)
        assert result.makespan_us <= simulate(problem, result.placement).makespan_us
        kept += result.order is not None
        fifo = PlacementProblem(problem.graph, problem.cluster, dispatch="fifo")
        assert load_placer("heft")(fifo).order is None
    assert kept > 0


def test_the_published_simulator_keeps_first_ready_first_served() -> None:
    graph = ComputationGraph.from_ops("fork", FORK)
    assert PlacementProblem(graph, load_cluster("4xk80")).dispatch == "fifo"
    assert PlacementProblem(graph, load_cluster("4xv100")).dispatch == "priority"
    hashes = {PlacementProblem(graph, load_cluster("4xv100"), dispatch=d).hash for d in ("fifo", "priority", "list")}
    assert len(hashes) == 3


@pytest.mark.parametrize("seed", range(20))
def test_an_order_of_lists_keeps_them_and_takes_of_the_ops_that_may_come_next_the_first(seed: int) -> None:
    problem, placement = random_problem(np.random.default_rng(seed), "unicast", "egress")
    graph = problem.graph
    lists = [ops.tolist() for ops in simulate(problem, placement).device_order]
    found, kept = order_of_lists(graph, lists), fixed_edges(graph)
    before = nx.DiGraph(zip(graph.edge_src[kept].tolist(), graph.edge_dst[kept].tolist(), strict=True))
    before.add_nodes_from(range(graph.num_ops))
    before.add_edges_from(pair for ops in lists for pair in pairwise(ops))
    assert found.tolist() == list(nx.lexicographical_topological_sort(before))
