"""Steps in micro-batches, run on several devices: sums of gradients as the schedule has them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import trace_training
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.runtime.executable import PlacedModule
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.transport.sums import in_lists
from placeto.simulator.schedule import simulate
from tests.captures import Made

X, Y = torch.randn(12, 6, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def by_backward(module: nn.Module, count: int) -> dict[str, Tensor | None]:
    """Gradients of a step in micro-batches as PyTorch accumulates them."""
    module.zero_grad()
    for x, y in zip(X.chunk(count), Y.chunk(count), strict=True):
        (nn.functional.cross_entropy(module(x), y) / count).backward()
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def threads(count: int) -> list[LocalDevice]:
    """So many devices, whether or not there are as many cores."""
    cpu = torch.device("cpu")
    return [LocalDevice(f"cpu:{number}", "cpu", cpu, 1 << 30, ThreadPoolExecutor(1)) for number in range(count)]


def run(cluster: Cluster, place: str, count: int, lists: bool = False) -> dict[str, Tensor | None]:
    """Gradients of the placed step on as many cores as the cluster has devices."""
    module = model()
    capture = trace_training(module, [X], nn.functional.cross_entropy, targets=[Y], micro_batches=count)
    problem = PlacementProblem(capture.graph, cluster)
    graph, devices = problem.graph, cluster.num_devices
    if place == "data":  # homes on the last device
        placement = np.where(graph.micro_batches >= 0, graph.micro_batches % devices, devices - 1)
    elif place == "pipeline":
        placement = np.array(
            [min(int(m or 4) // 2, devices - 1) if m.isdigit() else devices - 1 for m in graph.modules]
        )
    else:
        rng = np.random.default_rng(int(place))
        placement = rng.integers(devices, size=graph.num_ops)
        of_colour = rng.integers(devices, size=graph.num_ops)
        placement = np.where(graph.colocation >= 0, of_colour[graph.colocation], placement)
    schedule = simulate(problem, placement)
    if lists:
        schedule = in_lists(graph, schedule.placement, schedule.device_order)
    step = PlacedModule(capture, [X], [Y], schedule, threads(devices))
    step(X, Y)
    return {name: parameter.grad for name, parameter in module.named_parameters()}


@pytest.mark.parametrize(
    ("cluster", "count", "lists"),
    [("4xv100", 2, False), ("4xv100", 6, True), ("2x4xv100", 3, False), ("2x4xv100", 6, False), ("2x4xv100", 6, True)],
)
def test_a_pipeline_gives_the_gradients_of_eager_steps_to_the_bit(cluster: str, count: int, lists: bool) -> None:
    found, expected = run(load_cluster(cluster), "pipeline", count, lists), by_backward(model(), count)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("cluster", "place"), [("4xv100", "data"), ("4xv100", "0"), *(("2x4xv100", place) for place in ("data", "1", "2"))]
)
def test_other_placements_give_them_but_for_rounding_and_repeatably(cluster: str, place: str) -> None:
    found, again = (run(load_cluster(cluster), place, 6) for _ in range(2))
    expected = by_backward(model(), 6)
    for name, gradient in expected.items():
        assert torch.equal(found[name], again[name])
        assert torch.allclose(found[name], gradient, rtol=1e-6, atol=1e-6 * float(gradient.abs().max()))


def test_the_chain_of_the_capture_stays_as_it_is() -> None:
    capture = trace_training(model(), [X], nn.functional.cross_entropy, targets=[Y], micro_batches=6)
    before = str(capture.traced.graph)
    sums = gradient_sums(capture.graph)
    assert len(sums.home) == 6
    problem = PlacementProblem(capture.graph, load_cluster("4xv100"))
    placement = np.where(capture.graph.micro_batches >= 0, capture.graph.micro_batches % 4, 0)
    PlacedModule(capture, [X], [Y], simulate(problem, placement), threads(4))
    assert str(capture.traced.graph) == before


def test_sums_of_gradients_take_no_memory_of_their_own() -> None:
    """On one core the step holds what the simulator says, beside parameters and their gradients."""
    module = model()
    capture = trace_training(module, [X], nn.functional.cross_entropy, targets=[Y], micro_batches=4)
    problem = PlacementProblem(capture.graph, load_cluster("2xcpu-core"))
    schedule = simulate(problem, np.zeros(problem.num_ops, np.int64))
    _, (measured, _) = PlacedModule(capture, [X], [Y], schedule, threads(2)).peak_bytes(X, Y)
    assert measured == pytest.approx(schedule.peak_memory[0] - problem.resident_bytes.sum(), rel=0.05)


def test_a_gradient_that_shows_one_number_everywhere_is_not_overwritten() -> None:
    module: Any = Made(lambda self, x: (self.one.sum() * x).square().sum(), one=nn.Parameter(torch.ones(6)))
    capture = trace_training(module, [X], micro_batches=3)
    problem = PlacementProblem(capture.graph, load_cluster("2xcpu-core"))
    schedule = simulate(problem, np.zeros(problem.num_ops, np.int64))
    PlacedModule(capture, [X], [], schedule, threads(2))(X)
    torch.testing.assert_close(module.one.grad, (2 * 6 * X.square().sum() / 3).expand(6))


def test_a_gradient_that_something_else_needs_is_not_overwritten() -> None:
    """Two parameters that are added have one gradient, which is the first part of both sums."""
    module: Any = Made(
        lambda self, x: ((self.one + self.other) * x).square().sum(),
        one=nn.Parameter(torch.ones(6)),
        other=nn.Parameter(torch.ones(6)),
    )
    capture = trace_training(module, [X], micro_batches=3)
    problem = PlacementProblem(capture.graph, load_cluster("2xcpu-core"))
    schedule = simulate(problem, np.zeros(problem.num_ops, np.int64))
    PlacedModule(capture, [X], [], schedule, threads(2))(X)
    expected = sum(4 * part.square().sum(0) / 3 for part in X.chunk(3))
    for parameter in (module.one, module.other):
        assert torch.allclose(parameter.grad, expected)
