"""The trace of all micro-batches, beside PyTorch that runs one micro-batch after the other."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import trace_inference, trace_training
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.unrolled import unrolled
from tests.captures import Checkpointed, Made, Shared, assert_same_gradients, square
from tests.runtime.true import placed


def averages(self: Any, x: Tensor) -> Tensor:
    """Updates a mean, assigns the number of samples anew, and keeps the last output."""
    y: Tensor = self.inner(x)
    self.mean.mul_(0.9).add_(0.1 * y.detach().mean(0))
    self.seen = self.seen + len(x)
    self.last.copy_(y.detach().sum(0))
    return y.relu()


class Averages(Made):
    """A layer that keeps statistics."""

    def __init__(self) -> None:
        super().__init__(averages, inner=nn.Linear(8, 8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("last", torch.zeros(8))


def doubled(self: Any, x: Tensor) -> Tensor:
    """Changes its input in place."""
    result: Tensor = self.inner(x.mul_(2.0))
    return result


MODULES: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.1)),
    "instance norm": lambda: nn.Sequential(nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True),
                                           nn.Flatten(), nn.Linear(8, 3)),
    "shared": Shared,
    "checkpointed": lambda: Checkpointed(8, 2),
    "averages": Averages,
    "in place": lambda: Made(doubled, inner=nn.Linear(8, 3)),
    "slices": lambda: Made(lambda self, x: x @ self.w[:, :8] + x @ self.w[:, 8:], w=nn.Parameter(torch.rand(8, 16))),
    "a gradient of zeros": lambda: Made(lambda self, x: self.inner(x + self.w.floor()), inner=nn.Linear(8, 3),
                                        w=nn.Parameter(torch.rand(8))),
}  # fmt: skip


@pytest.mark.parametrize(("name", "count"), [*((name, 4) for name in MODULES), ("batch norm", 2), ("dropout", 2)])
def test_a_step_is_that_of_one_micro_batch_after_the_other(name: str, count: int, devices: list[LocalDevice]) -> None:
    torch.manual_seed(1)
    module = MODULES[name]()
    twin, x = copy.deepcopy(module), torch.randn(8, 8)
    loss = None if name == "checkpointed" else square
    capture = trace_training(module, [x], loss, micro_batches=count)
    step = placed(capture, [x], [0] * capture.graph.num_ops, devices)
    mine, its = x.clone(), x.clone()
    for _ in range(2):
        module.zero_grad()
        twin.zero_grad()
        torch.manual_seed(3)
        step(mine)
        torch.manual_seed(3)
        for part in its.chunk(count):
            value = twin(part)
            ((value if loss is None else loss(value)) / count).backward()
    assert torch.equal(mine, its)
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert_same_gradients(module, twin)
    for (path, ours), theirs in zip(module.named_buffers(), twin.buffers(), strict=True):
        # statistics of several micro-batches are computed in another way
        torch.testing.assert_close(ours, theirs, rtol=1e-6 * ("running" in path), atol=1e-7 * ("running" in path))


@pytest.mark.parametrize("name", MODULES)
def test_each_op_stands_for_nodes_of_its_own(name: str) -> None:
    loss = None if name == "checkpointed" else square
    capture = unrolled(trace_training(MODULES[name](), [torch.randn(8, 8)], loss, micro_batches=4))
    nodes = {node.name: node for node in capture.traced.graph.nodes}
    capture.traced.graph.lint()
    assert len(capture.nodes) == capture.graph.num_ops
    names = [name for of_op in capture.nodes for name in of_op]
    assert len(names) == len(set(names))
    for kind, of_op in zip(capture.graph.op_types, capture.nodes, strict=True):
        target = getattr(nodes[of_op[0]].target, "overloadpacket", None)
        others = "parameter", "buffer", "gradient", "aten.native_batch_norm"  # a norm that runs returns its statistics
        assert kind in others or str(target) in (kind, f"{kind}_")
    assert unrolled(capture) is capture


def test_one_micro_batch_is_not_unrolled() -> None:
    capture = trace_inference(nn.Linear(8, 3), [torch.randn(8, 8)])
    assert unrolled(capture) is capture
