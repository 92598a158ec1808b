"""Least maximal loads: small graphs by brute force, published optima where they lie beside the project."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placeto import place
from placeto.errors import PlacerError
from placeto.heuristics.throughput import THROUGHPUT, contiguous, free
from placeto.heuristics.throughput.contiguous import ContiguousSplits, OutOfTimeError, all_orders
from placeto.heuristics.throughput.ideals import all_ideals, some_ideals
from placeto.heuristics.throughput.stream import Stream, stream_of
from placeto.placers import resolve_graph
from placeto.problem.cluster import Cluster, Device
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from tests.cases import problem_of, with_devices
from tests.toys import alike, linked

SHARED = Path(__file__).parents[3] / "shared" / "data"


def cluster(accelerators: int, cpus: int = 0, memory: int = 10**9) -> Cluster:
    """Links of 1 byte/us."""
    kinds = ["accelerator"] * accelerators + ["cpu"] * cpus
    devices = tuple(Device(f"{kind}:{i}", kind, 1e12, 1e12, memory) for i, kind in enumerate(kinds))
    return linked(devices, name="toy")


def graph(seed: int, ops: int, training: bool = False) -> ComputationGraph:
    """A random graph; of a training step each op has a backward op beside it, but for the last, whose is by itself."""
    rng = np.random.default_rng(seed)
    reads = [sorted({int(rng.integers(max(0, i - 3), i)) for _ in range(2)}) if i else [] for i in range(ops)]
    records, sizes = [], rng.integers(1, 9, ops).tolist()
    for i in range(ops):
        time_us = {"*": float(rng.integers(1, 20)), "cpu": float(rng.integers(10, 60))}
        records.append({"name": f"f{i}", "type": "op", "outputs": [sizes[i]], "time_us": time_us, "param_bytes": 2})
        records[-1]["inputs"] = [[f"f{j}", 0] for j in reads[i]]
    for i in reversed(range(ops)) if training else ():
        inputs = [[f"b{k}", 0] for k in range(i + 1, ops) if i in reads[k]] + [[f"f{i}", 0]]
        records.append({"name": f"b{i}", "type": "op.backward", "outputs": [sizes[i]], "inputs": inputs})
        records[-1]["time_us"] = {"*": float(rng.integers(1, 20)), "cpu": 90.0}
        if i < ops - 1:
            records[-1]["colocation"] = records[i]["colocation"] = str(i)
    return ComputationGraph.from_ops("random", records, "training" if training else "inference")


def load_us(problem: PlacementProblem, placement: np.ndarray) -> float:
    """The greatest load, by its definition."""
    made = problem.graph
    cpu = [device.kind == "cpu" for device in problem.cluster.devices]
    loads = [float(problem.busy_us[placement == d, d].sum()) for d in range(problem.num_devices)]
    crossing = {
        (int(src), int(output), int(placement[src]), int(placement[dst]))
        for src, dst, output in zip(made.edge_src, made.edge_dst, made.edge_output, strict=True)
        if placement[src] != placement[dst]
    }
    for src, output, _, there in crossing:
        loads[there] += 0.0 if cpu[there] else float(made.output_bytes[made.output_ptr[src] + output])
    for src, output, home in {row[:3] for row in crossing}:
        loads[home] += 0.0 if cpu[home] else float(made.output_bytes[made.output_ptr[src] + output])
    return max(loads)


def brute_force(problem: PlacementProblem, stream: Stream, ordered: bool) -> float:
    """Least greatest load of all placements of units that fit, or of those whose devices can be put in an order."""
    best, devices = np.inf, range(problem.num_devices)
    for row in itertools.product(devices, repeat=stream.num_units):
        units = np.array(row)
        if not stream.fits(units):
            continue
        pairs = {(row[a], row[b]) for a, b in stream.before.tolist() if row[a] != row[b]}
        orders = itertools.permutations(devices) if ordered else ()
        if not ordered or any(all(order.index(a) < order.index(b) for a, b in pairs) for order in orders):
            best = min(best, load_us(problem, units[stream.unit]))
    return best


PROBLEMS = {
    "alike": PlacementProblem(graph(0, 7), cluster(3)),
    "cpu beside": PlacementProblem(graph(1, 7), cluster(2, 1)),
    "tight memory": PlacementProblem(graph(2, 7), cluster(3, memory=21)),
    "training": PlacementProblem(graph(3, 6, training=True), cluster(2, 1)),
}


def test_launches_are_refused() -> None:
    hosts = with_devices(cluster(2), launch_us=7.0)
    with pytest.raises(PlacerError, match=r"launch ops \(launch_us\), which the objective throughput doesn't count"):
        free(PlacementProblem(graph(0, 7), hosts))


@pytest.mark.parametrize("name", PROBLEMS)
def test_both_splits_are_the_optima_of_small_graphs(name: str) -> None:
    problem = PROBLEMS[name]
    stream = stream_of(problem)
    for placer, ordered in ((contiguous, True), (free, False)):
        result = placer(problem, seconds=20.0)
        assert result.greatest_us == pytest.approx(brute_force(problem, stream, ordered))
        assert result.greatest_us == pytest.approx(load_us(problem, result.placement))
        assert result.optimal
        assert (result.held <= [device.memory for device in problem.cluster.devices]).all()


def test_forward_and_backward_ops_sit_together() -> None:
    problem = PROBLEMS["training"]
    on, names = contiguous(problem).devices(), problem.graph.op_names
    assert all(on[name] == on[f"b{name[1:]}"] for name in names if name[0] == "f" and name != "f5")
    stream, made = stream_of(problem), problem.graph
    last = names.index("b5")  # by itself, it comes after those that it feeds
    fed = {int(stream.unit[op]) for op in made.edge_dst[made.edge_src == last]}
    assert {first for first, then in stream.before.tolist() if then == stream.unit[last]} == fed


def test_where_links_differ_the_bound_is_that_of_the_fastest() -> None:
    problem = PROBLEMS["alike"]
    links = np.array([[1.0, 4.0, 1.0], [4.0, 1.0, 4.0], [1.0, 4.0, 1.0]])
    uneven = PlacementProblem(problem.graph, replace(problem.cluster, bandwidth=links))
    faster = PlacementProblem(problem.graph, replace(problem.cluster, bandwidth=np.full((3, 3), 4.0)))
    result = contiguous(uneven)
    assert contiguous(faster).greatest_us == pytest.approx(result.bound_us)
    assert result.bound_us <= result.greatest_us <= contiguous(problem).greatest_us
    assert free(uneven, seconds=5.0).greatest_us <= result.greatest_us


def test_devices_of_many_kinds_follow_each_other_and_nothing_is_claimed() -> None:
    made = graph(4, 12)
    problem = PlacementProblem(made, linked(alike(*(10**6 + i for i in range(11)))))
    assert not all_orders(stream_of(problem))
    result = contiguous(problem)
    assert not result.optimal
    assert result.greatest_us <= problem.busy_us.sum(axis=0).min()


def test_ideals_are_closed_and_those_of_an_order_are_among_them() -> None:
    stream = stream_of(PROBLEMS["training"])
    ideals = all_ideals(stream)
    assert len(np.unique(ideals, axis=0)) == len(ideals)
    assert not (ideals[:, stream.before[:, 1]] & ~ideals[:, stream.before[:, 0]]).any()
    closed = sum(
        not any(b in chosen and a not in chosen for a, b in stream.before.tolist())
        for size in range(stream.num_units + 1)
        for chosen in itertools.combinations(range(stream.num_units), size)
    )
    assert len(ideals) == closed
    known = {row.tobytes() for row in ideals}
    assert all(row.tobytes() in known for row in some_ideals(stream, 3, 0))


def test_a_graph_of_too_many_ideals_is_split_by_groups() -> None:
    ops = [{"name": f"o{i}", "type": "op", "outputs": [1], "inputs": [], "time_us": {"*": 1.0}} for i in range(24)]
    problem = problem_of(ops, cluster(4))
    assert all_ideals(stream_of(problem)) is None
    assert contiguous(problem).greatest_us == pytest.approx(6.0)


def test_what_cannot_be_is_refused() -> None:
    steps = ComputationGraph.from_ops(
        "steps", [{"name": f"m{i}", "type": "op", "time_us": {"*": 1.0}, "micro_batch": i} for i in range(2)]
    )
    with pytest.raises(PlacerError, match="micro-batches"):
        contiguous(PlacementProblem(steps, cluster(2)))
    small = PlacementProblem(graph(0, 7), cluster(2, memory=5))
    for placer in THROUGHPUT.values():
        with pytest.raises(PlacerError, match=r"no .*split that fits in the memory of toy"):
            placer(small, seconds=1.0)
    stream = stream_of(PROBLEMS["alike"])
    with pytest.raises(OutOfTimeError):
        ContiguousSplits(stream, stream.cost_at(slowest=True), some_ideals(stream, 1, 0)).best(until=0.0)
    with pytest.raises(PlacerError, match="objective"):
        place(graph(0, 7), cluster="2xv100", objective="latency")  # type: ignore[arg-type]


@pytest.mark.skipif(not SHARED.exists(), reason="the published graphs lie beside the project")
@pytest.mark.parametrize("name", ["LayerGraphs/resnet50_inference", "OperatorGraphs/bert_l-3_training"])
def test_published_optima_are_reached(name: str) -> None:
    rows = json.loads((SHARED / "parallel" / "golden.json").read_text())["max_load_optima"]["rows"]
    row = next(row for row in rows if row["input"] == name)
    _, made = resolve_graph(str(SHARED / "dnn-partitioning" / "throughput-inputs" / f"{name}.json"))
    machine = cluster(row["k"], 1, 17185374208)
    rate = 2147483.648 if name.startswith("LayerGraphs") else 2147.483648  # bytes/us: ms a GiB differ by a thousand
    machine = replace(machine, bandwidth=np.full_like(machine.bandwidth, rate))
    result = contiguous(PlacementProblem(made, machine))
    assert result.greatest_us / 1000.0 == pytest.approx(row["optimum"], abs=1e-4)
    assert result.optimal
