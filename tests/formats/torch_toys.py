"""Models in chains, and schedules of plans for them, as torch runs them or can't."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_training
from placeto.formats.placement import save_placement
from placeto.heuristics.pipelines.bounded_orders import bounded_orders
from placeto.heuristics.pipelines.plans import make_plan
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import Schedule, simulate
from placeto.simulator.tool_steps.pipeline_step import in_whole_chunks
from tests.captures import Made, linears, square

WIDTH = 64


def captured(model: nn.Module, micro_batches: int = 4) -> ComputationGraph:
    """A training step."""
    x = torch.empty(8 * micro_batches, WIDTH)
    return capture_training(model, [x], square, name="model", micro_batches=micro_batches)


def chain(count: int = 4) -> nn.Module:
    """Layers one after the other."""
    return linears(count, WIDTH)


def planned(
    graph: ComputationGraph, devices: Sequence[Sequence[int]], order: str = "bounded", cluster: str = "4xv100"
) -> Schedule:
    """Stages of equally many layers, in the best order that is made for them or in a static one."""
    problem = PlacementProblem(graph, load_cluster(cluster))
    count, stages = len(layers(problem, False)), len(devices)
    borders = tuple(count * number // stages for number in range(1, stages))
    plan = make_plan(problem, tuple(map(tuple, devices)), borders)
    if order != "bounded":
        return simulate(problem.under(order), plan)
    placement = plan.placement(problem)
    found = [simulate(problem, placement, order=order, plan=plan) for order in bounded_orders(problem, placement)]
    return min(found, key=lambda schedule: schedule.makespan_us)


def save_planned(
    graph: ComputationGraph, cluster: str, devices: Sequence[Sequence[int]], path: str, whole_chunks: bool = False
) -> None:
    """The placement file of a plan; with `whole_chunks`, the plan has an order of chunks."""
    problem = PlacementProblem(graph, load_cluster(cluster))
    plan, evaluator = make_plan(problem, tuple(map(tuple, devices))), Evaluator(problem)
    evaluator.score_plan(plan, plan.placement(problem))
    save_placement(in_whole_chunks(evaluator.result())[0] if whole_chunks else evaluator.result(), path)


def skip() -> nn.Module:
    """The first layer's output is added to that of the last."""

    def compute(module: nn.Module, x: Tensor) -> Tensor:
        first = module.layers[0](x)
        return first + module.layers[1:](first)

    return Made(compute, layers=chain(6))


class Late(nn.Sequential):
    """The end reads the model's input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x


def again() -> nn.Module:
    """Two layers are called in turns."""
    parts = {"one": nn.Linear(WIDTH, WIDTH), "other": nn.Linear(WIDTH, WIDTH)}
    return Made(lambda self, x: self.other(self.one(self.other(self.one(x)))), **parts)


def tied() -> nn.Module:
    """The first layer and the last have one weight."""
    model = chain()
    model[3].weight = model[0].weight
    return model


def on_modules(graph: ComputationGraph, devices: dict[str, int], cluster: str) -> Schedule:
    """The ops of modules that begin so are on these devices, others on the first; what is colocated, on the last."""
    found = [max((d for head, d in devices.items() if path.startswith(head)), default=0) for path in graph.modules]
    placement = np.array(found)
    for colour in np.unique(graph.colocation[graph.colocation >= 0]):
        together = graph.colocation == colour
        placement[together] = placement[together].max()
    return simulate(PlacementProblem(graph, load_cluster(cluster)), placement)


class Reversal(torch.autograd.Function):
    """Passes on what it is given, and minus its gradient; no op of the graph stands for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


def with_hook(module: nn.Module, x: Tensor) -> Tensor:
    x = x.clone()
    x.register_hook(torch.neg)
    return x


def halving(layer: nn.Module) -> nn.Module:
    layer.register_full_backward_hook(lambda module, given, gradients: (0.5 * gradients[0],))
    return layer


OWN_GRADIENTS = pytest.mark.parametrize(
    ("layer", "what"),
    [
        (lambda: Made(lambda module, x: Reversal.apply(x)), "Reversal"),
        (lambda: Made(with_hook), "a hook of a tensor"),
        (lambda: halving(nn.Linear(WIDTH, WIDTH)), "a backward hook"),
    ],
    ids=["function", "tensor", "module"],
)
"""Layers that make gradients of their own, and how they are called."""
