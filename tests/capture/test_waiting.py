"""What waits for what in a captured step: as in PyTorch's own autograd graph, no more and no less."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_training
from placeto.problem.graph import ComputationGraph
from tests.captures import Checkpointed

Pair = tuple[tuple[str, str], tuple[str, str]]


class Residual(nn.Module):
    """Two branches that meet, a skip connection, and a side that ends in the loss early."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right, self.join, self.head = (nn.Linear(6, 6) for _ in range(5))
        self.side = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        both = self.join(torch.relu(self.left(x)) * self.right(x)) + x
        return self.head(both).pow(3).mean() + self.side(x).square().mean()


class Normalised(nn.Sequential):
    """Layers that keep several tensors for the backward pass."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3), nn.Softmax(-1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("make", [Residual, Normalised])
def test_what_needs_what_is_as_in_the_autograd_graph(make: Callable[[], nn.Module], count: int) -> None:
    x = torch.randn(10, 6)
    graph = capture_training(make(), [x], micro_batches=count)
    expected = autograd_pairs(make(), x[: 10 // count])
    for number in range(count) if count > 1 else [-1]:
        assert captured_pairs(graph, number) == expected


@pytest.mark.parametrize("optimizer_step", [False, True])
def test_micro_batches_need_nothing_of_each_other(optimizer_step: bool) -> None:
    graph = capture_training(Residual(), [torch.randn(10, 6)], micro_batches=5, optimizer_step=optimizer_step)
    needs, part = closure(graph), graph.micro_batches
    for op, other in zip(*np.nonzero(needs), strict=True):
        assert part[op] in (-1, part[other]) or part[other] == -1
    shared = {graph.op_types[op] for op in np.flatnonzero(part == -1)}
    assert shared <= {"parameter", "aten.add", "gradient", "optimizer.adam"}
    # what belongs to all is needed by the parts only where it needs none of them
    for op, other in zip(*np.nonzero(needs), strict=True):
        assert part[op] == -1 or part[other] >= 0 or graph.op_types[other] == "parameter"


def test_what_is_computed_again_waits_for_the_gradient_of_its_own_block() -> None:
    graph = capture_training(Checkpointed(6, 3), [torch.randn(8, 6)], micro_batches=4)
    needs, part = closure(graph), graph.micro_batches
    block = np.array([int(name.split(".")[1]) if name.startswith("blocks") else 3 for name in graph.modules])
    passes = np.array(graph.passes)
    again = np.flatnonzero(passes == "recomputation")
    assert {(part[op], block[op]) for op in again} == set(product(range(4), range(3)))
    for op in again:
        waits = graph.output_bytes[graph.edge_tensor[(graph.edge_dst == op) & (passes[graph.edge_src] == "backward")]]
        assert not waits.any(), "no bytes travel"
        earlier = needs[op] & (passes == "backward")
        assert set(part[earlier]) == {part[op]}
        assert set(block[earlier]) == set(range(block[op] + 1, 4))


def closure(graph: ComputationGraph) -> np.ndarray:
    """(N, N) bool: whether the op of a row needs that of a column, directly or not."""
    needs = np.zeros((graph.num_ops, graph.num_ops), bool)
    for op in graph.topological_order:
        for source in graph.edge_src[graph.edge_dst == op]:
            needs[op] |= needs[source]
            needs[op, source] = True
    return needs


def captured_pairs(graph: ComputationGraph, number: int) -> set[Pair]:
    """Which passes through which modules need which others, of a micro-batch."""
    needs = closure(graph)
    # sums of the gradients of what is used twice stand between two modules
    own = (graph.micro_batches == number) & np.array(
        [
            kind not in ("parameter", "gradient") and (kind, part) != ("aten.add", "backward")
            for kind, part in zip(graph.op_types, graph.passes, strict=True)
        ]
    )
    what = list(zip(graph.modules, graph.passes, strict=True))
    pairs = zip(*np.nonzero(needs & own & own[:, None]), strict=True)
    return {(what[op], what[other]) for op, other in pairs if known(what[op]) and known(what[other])} - {
        (one, one) for one in what
    }


def known(what: tuple[str, str]) -> bool:
    return what[0] not in ("", "loss")


def autograd_pairs(module: nn.Module, x: Tensor) -> set[Pair]:
    """The same by the graph that PyTorch keeps for ``backward()``."""
    made: dict[object, str] = {}  # node of autograd -> module

    def reach(*nodes: Any) -> set[object]:
        """These and all before them."""
        found: set[object] = set()
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node is not None and node not in found:
                found.add(node)
                stack += [parent for parent, _ in node.next_functions]
        return found

    def hook(path: str) -> Callable[..., None]:
        def after(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            for node in reach(output.grad_fn) - reach(*(given.grad_fn for given in inputs)):
                made.setdefault(node, path)

        return after

    for path, part in module.named_modules():
        if path:
            part.register_forward_hook(hook(path))
    loss = module(x)
    nodes = reach(loss.grad_fn)
    paths = {path for node, path in made.items() if node in nodes}

    def before(path: str) -> set[str]:
        """Modules whose results reach those of a module."""
        below = reach(*(node for node, of in made.items() if of == path))
        return {made[node] for node in below if node in made} - {path}

    pairs: set[Pair] = set()
    for path in paths:
        for other in before(path):
            pairs.add(((path, "forward"), (other, "forward")))
            pairs.add(((other, "backward"), (path, "backward")))
        pairs |= {((path, "backward"), (other, "forward")) for other in paths}  # its own loss
    return pairs
