"""What the primitives add to a step of two micro-batches, and how long it takes on links of one byte a microsecond."""

from dataclasses import replace

import numpy as np
import pytest

from placeto.problem.cluster import Link, Topology
from placeto.problem.cluster.cluster import Cluster
from placeto.problem.costs.collectives import HOP, SHARE, START_US, collective_us
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.readings.memory_timeline import GATHER, RELAY
from placeto.simulator.schedule import Schedule, simulate
from placeto.simulator.tool_steps.routes import Routes, over_hosts, ring, shares
from placeto.simulator.tool_steps.step_graph import (
    ADDITION,
    Exchange,
    Record,
    StepGraph,
    addition,
    exchange_links,
)
from tests.cases import problem_of
from tests.formats.torch_toys import captured, chain
from tests.toys import toy_cluster, work

W, CAST, FIRST, SECOND = range(4)
OPS = [
    {"name": "w", "type": "parameter", "param_bytes": 80, "outputs": [80], "pass": "forward"},
    {"name": "cast", "inputs": [["w", 0]], "outputs": [40], "pass": "forward", **work(5.0)},
    {"name": "first", "inputs": [["cast", 0]], "outputs": [7], "pass": "forward", "micro_batch": 0, **work(10.0)},
    {"name": "second", "inputs": [["cast", 0]], "outputs": [7], "pass": "forward", "micro_batch": 1, **work(20.0)},
]


def step_of(devices: int = 2, second: int = 1) -> StepGraph:
    """The second micro-batch is on device `second`, all else on device 0."""
    problem = problem_of(OPS, toy_cluster(devices))
    return StepGraph(problem, np.array([0, 0, 0, second]))


def hosts_of_two(count: int) -> Cluster:
    """Hosts of two toy devices each."""
    device = replace(toy_cluster(1).devices[0], kind="kind1")
    names = [replace(device, name=f"gpu:{number}") for number in range(2 * count)]
    topology = Topology(((2,),) * count, island=Link(1e9, 0.0), network=Link(1e6, 0.0))
    return Cluster.from_topology("hosts", names, topology)


def run(step: StepGraph, listed: bool = False) -> Schedule:
    problem, placement, order = step.built(listed)
    return simulate(problem, placement, order=order)


def kinds(schedule: Schedule, kind: str) -> list[int]:
    return [op for op, other in enumerate(schedule.problem.graph.op_types) if other == kind]


def test_each_device_reads_its_own_copies() -> None:
    step = step_of()
    step.copy({W: [0, 1], CAST: [0, 1]}, {})
    step.keep(np.flatnonzero(step.kept))
    schedule = run(step)
    graph = schedule.problem.graph
    assert set(graph.op_names) == {"w on gpu:0", "w on gpu:1", "cast on gpu:0", "cast on gpu:1", "first", "second"}
    assert (schedule.num_sends, schedule.makespan_us) == (0, 25.0)
    assert np.bincount(schedule.placement, graph.param_bytes).tolist() == [80, 80]
    assert (graph.colocation == -1).all()


def test_a_copy_that_no_second_device_needs_keeps_its_name_and_may_wait() -> None:
    step = step_of(second=0)
    written = step.add("written", 1, work(50.0) | {"outputs": [30]})
    step.copy({W: [0], CAST: [0]}, {(W, 0): written})
    step.keep([FIRST, SECOND])
    schedule = run(step)
    starts = dict(zip(schedule.problem.graph.op_names, schedule.start_us.tolist(), strict=True))
    assert starts == {"written": 0.0, "w": 80.0, "cast": 80.0, "first": 85.0, "second": 95.0}


def test_captured_ops_keep_all_their_fields() -> None:
    graph = captured(chain(), 2)
    step = StepGraph(PlacementProblem(graph, toy_cluster(1)), np.zeros(graph.num_ops, np.int64))
    step.copy({op: [0] for op in np.flatnonzero(step.shared).tolist()}, {})
    step.keep(np.flatnonzero(step.kept))
    before = {record.pop("name"): record for record in graph.to_ops()}
    after = {record.pop("name"): record for record in step.built()[0].graph.to_ops()}
    assert set(after) == {name for op, name in enumerate(graph.op_names) if not step.summed[op]}
    for name, record in after.items():
        expected = before[name]
        expected.pop("colocation", None)
        if "held" in expected:
            expected["held"] = [each for each in expected["held"] if each[0] in after]
        assert record == {key: value for key, value in expected.items() if value != []} | {
            key: record[key] for key in ("inputs", "outputs") if record[key] == []
        }


def test_an_all_reduce_takes_its_rounds_and_its_additions() -> None:
    """Six rounds of 100 bytes; a device adds up three parts at 20 us each."""
    for us in (0.0, 20.0):
        step = step_of(4)

        def cost(device: int, count: int, size: float, us: float = us) -> Record:
            return work(count * us)

        parts = Exchange("{} on {}".format, shares(400, 4), ring(range(4)), in_place=True, cost=cost)
        step.all_reduce(parts, range(4))
        schedule = run(step, listed=True)
        assert schedule.makespan_us == 6 * 100.0 + 3 * us
        assert np.bincount(schedule.send_src).tolist() == [6] * 4
        assert schedule.peak_memory.tolist() == [100 * (us > 0)] * 4  # a part while it is added; all else is in place


@pytest.mark.parametrize("devices", [2, 3, 5, 8, 13])
@pytest.mark.parametrize("size", [0, 10**3, 10**6, 10**9])
def test_an_all_reduce_round_a_ring_takes_what_its_model_says(devices: int, size: int) -> None:
    """Up to 16 ranks, and where the sizes of shares are equal; small tensors of more ranks are summed along trees."""
    size *= devices
    matrices = {"bandwidth": np.full((devices, devices), 1000.0), "latency_us": np.full((devices, devices), 7.0)}
    cluster = replace(toy_cluster(devices), **matrices)
    links, as_they_arrive = exchange_links(cluster, range(devices), 2 * (devices - 1))
    step = StepGraph(problem_of(OPS, cluster), np.zeros(4, np.int64), links)
    parts = Exchange(
        "{} on {}".format, shares(size, devices), ring(range(devices)), in_place=True, as_they_arrive=as_they_arrive
    )
    step.all_reduce(parts, range(devices))
    ring_us = START_US + 2 * (devices - 1) * (HOP * 7.0 + size / devices / (SHARE * 1000.0))
    assert run(step, listed=True).makespan_us == pytest.approx(ring_us)
    assert collective_us("all_reduce", size, devices, 1000.0, 7.0) == pytest.approx(ring_us) or devices > 8


@pytest.mark.parametrize("routes", [ring(range(4)), over_hosts(range(4), np.array([0, 0, 1, 1]))])
def test_all_routes_make_as_many_additions_and_send_as_much(routes: Routes) -> None:
    size = 4000
    step = StepGraph(PlacementProblem(ComputationGraph.from_ops("two", OPS), hosts_of_two(2)), np.zeros(4, np.int64))
    parts = Exchange("{} on {}".format, shares(size, 4), routes, {"module": "here"})
    sums = step.reduce(parts, dict.fromkeys(range(4), ()), resident=True)
    step.gather(parts, sums, range(4), "whole", size)
    schedule = run(step)
    graph = schedule.problem.graph
    assert graph.flops[kinds(schedule, ADDITION)].sum() == 3 * size / 4
    assert schedule.num_sends == 2 * 4 * 3
    assert graph.output_bytes[graph.output_ptr[kinds(schedule, GATHER)]].tolist() == [size] * 4
    assert set(graph.modules) == {"here"}


def test_a_part_crosses_to_each_host_once_and_only_if_it_is_needed_there() -> None:
    cluster = hosts_of_two(3)
    for needed, crossings in ((range(6), 6 * 2), ((0, 1, 4), 2 + 2 * 2 + 2)):  # parts of the first host, and so on
        step = StepGraph(problem_of(OPS, cluster), np.zeros(4, np.int64))
        parts = Exchange("{} on {}".format, [10] * 6, over_hosts(range(6), cluster.host))
        sent = [step.add(f"part {device}", device, {"outputs": [10]}) for device in range(6)]
        whole = step.gather(parts, sent, needed, "whole")
        schedule = run(step)
        crossed = cluster.host[schedule.send_src] != cluster.host[schedule.send_dst]
        assert (list(whole), crossed.sum(), len(kinds(schedule, RELAY))) == (list(needed), crossings, crossings)


def test_sums_are_added_to_those_of_earlier_micro_batches() -> None:
    step = step_of()
    routes = over_hosts([0, 1], np.zeros(2))
    for again in (False, True):
        parts = Exchange(f"{{}} {again} on {{}}".format, [40, 40], routes)
        step.reduce(parts, {0: [], 1: []}, resident=False, again=again)
    work_of = run(step).problem.graph.flops
    assert work_of[work_of > 0].tolist() == [10.0, 10.0, 20.0, 20.0]
    assert addition(0, 2, 40)["bytes_accessed"] == 240.0
