"""Models in chains, and schedules of plans for them, as torch runs them or can't."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_training
from placeto.formats.placement import save_placement
from placeto.heuristics.bounded_orders import bounded_orders
from placeto.heuristics.plans import make_plan
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.pipeline_step import in_whole_chunks
from placeto.simulator.schedule import Schedule, simulate

WIDTH = 64


def captured(model: nn.Module, micro_batches: int = 4) -> ComputationGraph:
    """A training step."""
    x = torch.empty(8 * micro_batches, WIDTH)
    return capture_training(model, [x], lambda y: y.square().mean(), name="model", micro_batches=micro_batches)


def chain(count: int = 4) -> nn.Module:
    """Layers one after the other."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))


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


class Skip(nn.Module):
    """The first layer's output is added to that of the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = y = self.layers[0](x)
        for layer in self.layers[1:]:
            y = layer(y)
        return x + y


class Late(nn.Module):
    """The last layer reads the model's input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers[2](self.layers[1](self.layers[0](x)))
        return self.layers[3](y) + x


class Again(nn.Module):
    """Two layers are called in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(self.other(self.one(x))))


def tied() -> nn.Module:
    """The first layer and the last have one weight."""
    model = chain()
    model[3].weight = model[0].weight
    return model
