"""Sums of gradients and copies of parameters, as a placement lowers them."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_training
from placeto.problem.cluster import Cluster, Device, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate, simulate_batch
from tests.captures import Made, chained, meta, square
from tests.lowering import plainly_lowered
from tests.reference import reference


def tied(self: Any, words: Tensor) -> Tensor:
    """An embedding whose weight is used again at the end, a frozen layer, and one that is called twice."""
    x = self.twice(torch.tanh(self.twice(self.embedding(words))))
    return torch.relu(self.frozen(x)) @ self.embedding.weight.T


@cache
def step(micro_batches: int = 4, precision: str = "fp32") -> ComputationGraph:
    parts = {"embedding": nn.Embedding(12, 8), "twice": nn.Linear(8, 8), "frozen": nn.Linear(8, 8)}
    parts["frozen"].requires_grad_(False)
    how = {"micro_batches": micro_batches, "precision": precision, "optimizer_step": precision != "fp32"}
    return capture_training(Made(tied, **parts).to("meta"), [meta(8, 5).long()], square, **how)


def hosts(dispatch: str = "priority", link: str = "egress", transfers: str = "unicast") -> Cluster:
    """Three hosts of one, two and three devices, all links of different speed."""
    rng = np.random.default_rng(0)
    devices = tuple(Device(f"{'abc'[d % 3]}{d}", "x", 1e9 * (1 + d), 1e9, 10**9, 0.5 * d) for d in range(6))
    return Cluster(
        "hosts",
        devices,
        rng.uniform(1, 30, (6, 6)),
        rng.uniform(0, 9, (6, 6)),
        transfers,
        link,
        dispatch=dispatch,
        hosts=(0, 1, 1, 2, 2, 2),
    )


@pytest.mark.parametrize("transfers", ["unicast", "broadcast"])
@pytest.mark.parametrize("link", ["egress", "pair", "free"])
@pytest.mark.parametrize("dispatch", ["priority", "fifo"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_simulates_what_plain_lowering_says(dispatch: str, link: str, transfers: str, precision: str) -> None:
    problem = PlacementProblem(step(precision=precision), hosts(dispatch, link, transfers))
    names = problem.graph.op_names
    for seed in range(5):
        placement = placed(problem.graph, np.random.default_rng(seed), 1 + seed)
        plain = plainly_lowered(problem, placement)
        expected = reference(plain.problem, plain.placement, plain.place if dispatch == "priority" else None)
        found = simulate(problem, placement)
        assert found.makespan_us == expected.makespan
        assert dict(zip(names, found.start_us.tolist(), strict=True)) == {n: expected.start[n] for n in names}
        assert found.placement.tolist() == plain.placement[: len(names)].tolist()
        assert found.num_sends == len(expected.sends)


def placed(graph: ComputationGraph, rng: np.random.Generator, spread: int = 5) -> np.ndarray:
    """(N,) random devices of six, `spread` of them, the same for ops that must stay together."""
    some = rng.choice(6, min(6, spread), replace=False)
    placement = some[rng.integers(len(some), size=graph.num_ops)]
    of_colour = some[rng.integers(len(some), size=graph.num_ops)]
    return np.where(graph.colocation >= 0, of_colour[graph.colocation], placement)


def crossings(schedule: Schedule) -> np.ndarray:
    """(S,) bool, sends from one host to another."""
    host = schedule.problem.cluster.host
    return host[schedule.send_src] != host[schedule.send_dst]


def test_a_gradient_and_a_parameter_cross_to_another_host_once() -> None:
    problem = PlacementProblem(step(8), load_cluster("2x4xv100"))
    graph = problem.graph
    placement = np.where(graph.micro_batches >= 0, graph.micro_batches, 0)  # all homes on the first device
    schedule = simulate(problem, placement)
    sums, size = gradient_sums(graph), graph.output_bytes[schedule.send_tensor]
    made_by = np.searchsorted(graph.output_ptr, schedule.send_tensor, side="right") - 1
    for op, kind in enumerate(graph.op_types):
        if kind == "parameter":
            sends = made_by == op
            assert (crossings(schedule) & sends).sum() == 1
            assert sorted(schedule.send_dst[sends].tolist()) == [1, 2, 3, 4, 5, 6, 7]
    summed = np.isin(made_by, sums.additions) | np.isin(schedule.send_tensor, sums.tensor)
    gradients = [graph.output_bytes[sums.tensor[sums.ptr[s]]] for s in range(len(sums.home))]
    assert size[crossings(schedule) & summed].sum() == sum(gradients)
    assert size[summed].sum() == 7 * sum(gradients)  # one from each device but the home


@pytest.mark.parametrize("dispatch", ["priority", "fifo", "list"])
@pytest.mark.parametrize("link", ["egress", "pair"])
def test_the_order_of_a_schedule_can_be_run_as_a_list(dispatch: str, link: str) -> None:
    problem = PlacementProblem(step(), hosts(dispatch, link))
    for seed in range(5):
        schedule = simulate(problem, placed(problem.graph, np.random.default_rng(seed)))
        order = schedule.order[schedule.order < problem.num_ops]
        again = simulate(problem, schedule.placement, order=order)
        assert again.makespan_us < np.inf
        assert again.makespan_us < 1.5 * schedule.makespan_us
        assert again.placement.tolist() == schedule.placement.tolist()


def test_batches_with_and_without_sums() -> None:
    rng = np.random.default_rng(1)
    for problem in (PlacementProblem(step(n), cluster) for n in (1, 4) for cluster in (hosts(), load_cluster("4xk80"))):
        rows = np.array([placed(problem.graph, rng) % problem.num_devices for _ in range(3)])
        makespans, overflows = simulate_batch(problem, rows)
        single = [simulate(problem, row) for row in rows]
        assert makespans.tolist() == [schedule.makespan_us for schedule in single]
        assert overflows.tolist() == [schedule.overflow for schedule in single]


@pytest.mark.parametrize("link", ["egress", "pair"])
def test_slack_is_that_of_the_plainly_lowered_problem(link: str) -> None:
    problem = PlacementProblem(step(), hosts("fifo", link))  # which reads no priorities
    for seed in range(5):
        placement = placed(problem.graph, np.random.default_rng(seed))
        plain = plainly_lowered(problem, placement)
        expected = simulate(plain.problem, plain.placement).slack_us[: problem.num_ops]
        assert simulate(problem, placement).slack_us.tolist() == expected.tolist()


def test_sums_take_the_memory_of_what_they_add_to() -> None:
    """A layer so wide that its gradient is most of the memory: elsewhere a copy of it, at home none beside it."""
    graph = chained(1, 1000, 4, 4, bias=False)
    problem, weight = PlacementProblem(graph, load_cluster("2xv100")), 4_000_000
    at_home = simulate(problem, np.zeros(graph.num_ops, np.int64)).peak_memory[0]
    resident = int(problem.resident_bytes.sum())
    assert resident + weight <= at_home < resident + 1.1 * weight  # what is added, and small activations
    elsewhere = simulate(problem, np.where(graph.micro_batches >= 0, 1, 0)).peak_memory[1]
    assert 2 * weight <= elsewhere < 2.1 * weight  # the sum, and what is added: the weight's copy is gone by then


def test_bounds_hold_however_sums_are_lowered() -> None:
    problem = PlacementProblem(step(8), hosts())
    alone = [simulate(problem, np.full(problem.num_ops, device)).makespan_us for device in range(6)]
    assert problem.single_device_us == min(alone)
    for seed in range(20):
        placement = placed(problem.graph, np.random.default_rng(seed))
        makespan = simulate(problem, placement).makespan_us
        assert problem.lower_bound_us <= makespan
        assert simulate(problem, placement, cutoff=makespan).makespan_us == makespan
