"""Small modules to capture, and what a captured graph says of an op."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placeto.capture.trace import capture_training
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import colocation_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate
from tests.parts import Parts


def meta(*shape: int) -> Tensor:
    return torch.empty(*shape, device="meta")


def training(module: nn.Module, *inputs: Tensor, **options: object) -> ComputationGraph:
    return capture_training(module.to("meta"), inputs, lambda y: y.sum(), **options)  # type: ignore[arg-type]


def record(graph: ComputationGraph, name: str) -> dict:
    return graph.to_ops()[graph.index[name]]


def inputs_of(graph: ComputationGraph, name: str) -> list[str]:
    return [source for source, _ in record(graph, name)["inputs"]]


def colocated(graph: ComputationGraph, name: str) -> set[str]:
    """All ops that share a colocation id with an op, or the op alone."""
    colour = graph.colocation[graph.index[name]]
    return {graph.op_names[i] for i in np.flatnonzero(graph.colocation == colour)} if colour >= 0 else {name}


def kept(graph: ComputationGraph, name: str) -> set[str]:
    """All ops that are kept together with an op by rule or by choice, or the op alone."""
    colour = colocation_groups(graph)[graph.index[name]]
    return {graph.op_names[i] for i in np.flatnonzero(colocation_groups(graph) == colour)} if colour >= 0 else {name}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def linears(count: int, width: int, **options: Any) -> nn.Sequential:
    """Equal layers one after the other."""
    return nn.Sequential(*(nn.Linear(width, width, **options) for _ in range(count)))


def square(output: Any, *targets: Any) -> Tensor:
    """A loss."""
    return output.square().mean()


def chained(count: int, width: int, rows: int, micro_batches: int = 1, **options: Any) -> ComputationGraph:
    """A training step of equal layers one after the other."""
    module = linears(count, width, device="meta", **options)
    return capture_training(module, [meta(rows, width)], square, micro_batches=micro_batches)


def on_one_device(graph: ComputationGraph, cluster: str = "2xv100") -> Schedule:
    """In program order, as eager execution does."""
    problem = PlacementProblem(graph, load_cluster(cluster), dispatch="list")
    return simulate(problem, np.zeros(graph.num_ops, np.int64))


def assert_same_gradients(module: nn.Module, other: nn.Module, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Each parameter has the gradient that it has in another module, or none as there; to the bit unless told so."""
    for (name, mine), its in zip(module.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad, rtol=rtol, atol=atol, msg=f"the gradient of {name} differs")


class Made(Parts):
    """A module of some parts, whose forward pass is a function of the module and of what it is given."""

    def __init__(self, compute: Callable[..., Any], **parts: Any) -> None:
        super().__init__(compute=compute, **parts)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.compute(self, *arguments, **named)


def called(function: Any) -> nn.Module:
    """A function of tensors, as a module."""
    return Made(lambda self, *inputs: function(*inputs))


class Checkpointed(nn.Module):
    """Blocks of layers of some width, each block in a checkpoint unless told otherwise."""

    def __init__(self, width: int, blocks: int, layers: int = 1, again: bool = True) -> None:
        super().__init__()
        parts = [[m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())] for _ in range(blocks)]
        self.blocks, self.again = nn.ModuleList(nn.Sequential(*block) for block in parts), again

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return x.square().mean()


class Shared(nn.Module):
    """One layer, applied three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return x
