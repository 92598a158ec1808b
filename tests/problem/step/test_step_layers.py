"""Layers between which plans cut a graph."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_training
from placeto.heuristics import HEURISTICS
from placeto.heuristics.pipelines.plans import all_plans
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from tests.captures import chained, linears, square

COUNT, BATCH = 6, 2048


def test_layers_follow_the_forward_pass() -> None:
    graph = chained(COUNT, 512, BATCH, 8, bias=False)
    problem = PlacementProblem(graph, load_cluster("4xv100"))
    cut = layers(problem, False)
    layer, work = cut.number, cut.work_us
    assert len(work) == COUNT  # the loss is in the last one
    assert cut.parameters.tolist() == [4 * 512**2] * COUNT
    assert cut.crossing.tolist() == [4 * 512 * BATCH // 8] * (COUNT - 1)
    for op, module in enumerate(graph.modules):
        if module.isdigit():
            assert layer[op] == int(module)
    assert work.sum() == pytest.approx(problem.busy_us.mean(axis=1).sum())


class Gated(nn.Module):
    """A gated block (SwiGLU), whose product is computed behind one of its factors; its input is unbound first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(64, 64) for _ in range(3))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 64) -> (B, 64)."""
        one, other = torch.stack([self.norm(x), x]).unbind()
        return other + self.down(nn.functional.silu(self.gate(one)) * self.up(one))


def _repeated(activation: nn.Module) -> nn.Module:
    """Layers, between which one activation is called again and again; the last two are one."""
    dense = linears(4, 64)
    return nn.Sequential(*(part for layer in [*dense, dense[-1]] for part in (layer, activation)))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "make",
    [*(partial(_repeated, each()) for each in (nn.GELU, nn.SiLU, nn.ReLU)), lambda: nn.Sequential(Gated(), Gated())],
)
def test_no_layer_reads_from_a_later_one_nor_its_backward_pass_from_an_earlier_ones(
    make: Callable[[], nn.Module], whole: bool
) -> None:
    with torch.device("meta"):
        module, x = make(), torch.empty(512, 64)
    graph = capture_training(module, [x], square, micro_batches=4)
    number = layers(PlacementProblem(graph, load_cluster("4xv100")), whole).number
    for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        if graph.micro_batches[src] == graph.micro_batches[dst] != -1:
            passes = graph.passes[src], graph.passes[dst]
            if passes == ("forward", "forward"):
                assert number[src] <= number[dst], (graph.op_names[src], graph.op_names[dst])
            elif passes == ("backward", "backward"):
                assert number[src] >= number[dst], (graph.op_names[src], graph.op_names[dst])


class Transposed(nn.Module):
    """Multiplies by a view of a parameter, which autocast copies anew for each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 64) -> (B, 64)."""
        return torch.relu(x @ self.weight.t())


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_copies_of_parameters_are_no_layers_of_their_own(micro_batches: int) -> None:
    with torch.device("meta"):
        module, x = nn.Sequential(*(Transposed() for _ in range(3))), torch.empty(512, 64)
    graph = capture_training(module, [x], square, micro_batches=micro_batches, precision="bf16")
    assert len(layers(PlacementProblem(graph, load_cluster("4xv100")), False)) == 3


class Recurrent(nn.Module):
    """Cells, each of which reads the states of the one below at all steps: one step of all cells after the other."""

    def __init__(self, cells: int, width: int, steps: int) -> None:
        super().__init__()
        self.cells, self.steps = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(cells)), steps
        self.classifier = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, H) -> (B, S, H)."""
        states = [(torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])) for _ in self.cells]
        tops = []
        for step in range(self.steps):
            below = x[:, step]
            for number, cell in enumerate(self.cells):
                states[number] = cell(below, states[number])
                below = states[number][0]
            tops.append(below)
        return self.classifier(torch.stack(tops, 1))


def recurrent(cells: int, steps: int) -> ComputationGraph:
    with torch.device("meta"):
        module, x = Recurrent(cells, 1024, steps), torch.empty(2048, steps, 1024)
    return capture_training(module, [x], square, micro_batches=4)


@pytest.mark.slow
def test_recurrent_networks_are_cut_between_steps_or_between_cells() -> None:
    problem = PlacementProblem(recurrent(3, 4), load_cluster("4xv100"))
    cut = {whole: layers(problem, whole) for whole in (False, True)}
    assert len(cut[True].work_us) >= 3  # cells; the classifier and the loss may be with the last one
    forward = np.array([kind == "forward" for kind in problem.graph.passes])
    of_cell = [set(cut[True].number[forward & np.array(_in(problem, cell))].tolist()) for cell in range(3)]
    assert of_cell == [{0}, {1}, {2}]
    assert any(len(set(cut[False].number[forward & np.array(_in(problem, cell))].tolist())) > 1 for cell in range(3))
    plans = all_plans(problem)
    assert {plan.whole for plan in plans} == {False, True}
    best = HEURISTICS["pipeline"](problem)
    assert best.fits
    alone = [plan.placement(problem) for plan in plans if not plan.whole]
    assert not any(np.array_equal(best.placement, placement) for placement in alone)


def _in(problem: PlacementProblem, cell: int) -> list[bool]:
    return [module.startswith(f"cells.{cell}") for module in problem.graph.modules]


def test_where_each_module_runs_once_layers_are_the_same() -> None:
    problem = PlacementProblem(chained(4, 64, 512, 4), load_cluster("4xv100"))
    assert np.array_equal(layers(problem, True).number, layers(problem, False).number)
    assert {plan.whole for plan in all_plans(problem)} == {False}
