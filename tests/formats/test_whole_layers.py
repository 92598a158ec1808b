"""The layers of each device are found again in a placement, and rounded where it divides them."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_inference, capture_training
from placeto.errors import PlacementError
from placeto.formats.exports.whole_layers import whole_layers
from placeto.heuristics.pipelines.plans import make_plan
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.simulator.schedule import Schedule, simulate
from tests.formats.torch_toys import captured, planned

WORDS = 300


class Block(nn.Module):
    """Two linear layers, and a sum of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(self.wide(x).tanh())


class Language(nn.Module):
    """An embedding, layers, a norm and a head."""

    def __init__(self, depth: int = 6, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.body = nn.ModuleDict({"h": nn.ModuleList(Block(width) for _ in range(depth))})
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.body["h"]:  # type: ignore[attr-defined]
            x = block(x)
        return self.head(self.norm(x))


INPUT = torch.zeros(8, 32, dtype=torch.long)
TRAINING = capture_training(Language(), [INPUT], lambda y: y.square().mean(), name="model", micro_batches=4)
INFERENCE = capture_inference(Language(), [INPUT], name="model")


def cut(graph: ComputationGraph, devices: list[int], modules: list[str], cluster: str = "4xv100") -> Schedule:
    """Stages that begin at modules, without replicas."""
    problem = PlacementProblem(graph, load_cluster(cluster))
    number = layers(problem, False).number
    borders = [int(min(number[op] for op, path in enumerate(graph.modules) if path.startswith(at))) for at in modules]
    return simulate(problem, make_plan(problem, tuple((device,) for device in devices), borders))


@pytest.mark.parametrize("graph", [TRAINING, INFERENCE], ids=["training", "inference"])
def test_the_layers_of_a_plan_are_found_again(graph: ComputationGraph) -> None:
    schedule = cut(graph, [2, 0], ["body.h.2"])
    made = whole_layers(schedule, "the tool")
    assert made.modules == tuple(f"body.h.{number}" for number in range(6))
    assert (made.before, made.behind) == (("embed",), ("norm", "head"))
    assert (made.stages, made.counts) == (((0, 2), (2, 6)), (2, 4))
    assert (made.plan.replicas, made.ranks) == (((2, 0),), ((2, 0),))
    assert made.plan.num_micro_batches == (4 if graph is TRAINING else 1)
    assert made.moved == 0.0
    assert made.schedule.placement.tolist() == schedule.placement.tolist()


def test_a_layer_that_is_divided_goes_where_most_of_it_is() -> None:
    with torch.device("meta"):
        blocks = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)) for _ in range(3)))
        graph = capture_training(blocks, [torch.empty(32, 64)], lambda y: y.square().mean(), micro_batches=4)
    problem = PlacementProblem(graph, load_cluster("2xv100"))
    assert layers(problem, False).blocks.items.tolist() == [-1, 1, -1, 2, -1]  # two layers in each block
    for border, kept in ((1, 2), (2, 2), (3, 4), (4, 4), (5, 4)):  # of halves, the first counts
        made = whole_layers(simulate(problem, make_plan(problem, ((0,), (1,)), (border,))), "the tool")
        assert made.schedule.plan == make_plan(problem, ((0,), (1,)), (kept,))
        assert made.counts == (kept // 2, 3 - kept // 2)
        assert (made.moved > 0.0) == (border != kept)


def test_what_has_no_list_of_layers_is_refused() -> None:
    plain = nn.Sequential()
    plain.add_module("one", nn.Linear(64, 64))
    plain.add_module("other", nn.Linear(64, 64))
    with pytest.raises(PlacementError, match="has no list of layers"):
        whole_layers(planned(captured(plain), [(0,), (1,)]), "the tool")


def test_an_inference_needs_no_plan_if_each_layer_is_on_one_device() -> None:
    planned_schedule = cut(INFERENCE, [1, 0], ["body.h.2"])
    free = simulate(planned_schedule.problem, planned_schedule.placement)
    assert whole_layers(free, "vLLM", trains=False).stages == ((0, 2), (2, 6))
    problem, divided = free.problem, free.placement.copy()
    busy = layers(problem, False).busy_us > 0.0
    several = np.bincount(layers(problem, False).number[busy])[layers(problem, False).number] > 1
    divided[np.flatnonzero(busy & several)[0]] = 3
    with pytest.raises(PlacementError, match="no plan"):
        whole_layers(simulate(problem, divided), "vLLM", trains=False)
