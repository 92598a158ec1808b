"""Storages larger than their tensors: as a run on the cpu makes them, and in the memory of a step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from placeto.capture.trace import capture_inference, capture_training
from placeto.capture.tracing.storages import LARGER, as_stored
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.runtime.measuring.meter import Meter
from placeto.simulator.schedule import simulate
from tests.captures import Made, on_one_device
from tests.memory_meter import peak_of_training_step

Y, T = torch.rand(6, 12, 4), torch.rand(6, 12, 4)
CALLS: dict[str, Callable[..., Tensor]] = {
    **{f"mse_loss {how}": lambda y, t, how=how: F.mse_loss(y, t, reduction=how) for how in ("mean", "sum", "none")},
    "smooth_l1_loss": F.smooth_l1_loss,
    "soft_margin_loss": F.soft_margin_loss,
    "binary_cross_entropy": lambda y, t: F.binary_cross_entropy(y, t, weight=t),
    "broadcast": lambda y, t: torch.ops.aten.mse_loss(y[:, :1], t[:1]),
    "double": lambda y, t: F.mse_loss(y, t.double()),
    "strided": lambda y, t: F.mse_loss(y[..., ::2], t[..., ::2]),
    "fold": lambda y, t: F.fold(y, 2, 2, padding=1, stride=2),
    "fold of few columns": lambda y, t: F.fold(y[..., :1], 2, 2),
    "l1_loss": F.l1_loss,
    "huber_loss": F.huber_loss,
}


class Storages(TorchDispatchMode):
    """Keeps the bytes of the storage that each op in the table makes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = as_stored(func, args, func(*args, **(kwargs or {})))
        if func in LARGER:
            self.made.append(result.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("call", CALLS)
def test_fake_tensors_have_the_storages_of_real_ones(call: str) -> None:
    """Fails where torch no longer makes a storage larger than its tensor, too."""
    with Storages() as real:
        CALLS[call](Y, T)
    with FakeTensorMode(), Storages() as fake:
        CALLS[call](torch.empty(Y.shape), torch.empty(T.shape))
    assert fake.made == real.made


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss])
def test_a_gradient_has_the_dtype_of_the_prediction(loss: Callable[..., Tensor]) -> None:
    targets = [torch.rand(2, 16, dtype=torch.float64)]
    graph = capture_training(nn.Linear(16, 16), [torch.rand(2, 16)], loss, targets=targets)
    (gradient,) = (op for op in graph.to_ops() if op["type"].endswith("_backward"))
    assert gradient["outputs"][0] == 2 * 16 * 4


def decoder() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Sigmoid())


def folds() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (4, 4)), nn.Fold((3, 3), 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Tanh())


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy, F.soft_margin_loss, F.l1_loss])
def test_a_loss_keeps_the_bytes_of_all_elements_as_long_as_it_lives(loss: Callable[..., Tensor]) -> None:
    assert_as_measured(decoder(), loss)


def test_folded_columns_keep_their_bytes() -> None:
    twice = Made(
        lambda self, x: self.fold(x @ self.weight).sin(), fold=folds(), weight=nn.Parameter(torch.rand(16, 16))
    )
    assert_as_measured(twice, lambda y, t: y.square().mean())


def filled_in_parts(y: Tensor) -> Tensor:
    made = torch.zeros_like(y)
    for part in range(4):
        made[:, part * 32 : part * 32 + 32] = y[:, part * 32 : part * 32 + 32] * 2
    return made


def doubled_in_part(y: Tensor) -> Tensor:
    copied = y.clone()
    copied[:, :8].mul_(2)
    return copied


@pytest.mark.parametrize(
    "compute",
    [
        lambda y: y + torch.ones_like(y),
        lambda y: torch.where(y > 0, y, torch.zeros_like(y)),
        lambda y: y * torch.empty_like(y).fill_(2.0),
        lambda y: torch.zeros_like(y).scatter_(1, (y > 0).long(), y),
        lambda y: F.rrelu(y, training=True),
        filled_in_parts,
        doubled_in_part,
        lambda y: y * torch.full(y.shape, 2.0),
        lambda y: y + torch.zeros(4, *y.shape).sum(0),
        lambda y: y * (torch.arange(len(y))[:, None] * torch.ones(128)).sin(),
        lambda y: (y @ y.T + torch.full((len(y), len(y)), -1e9).triu(1)).softmax(1) @ y,
        lambda y: y.cos().sin() + torch.ones(4, *y.shape)[0],
    ],
)
def test_tensors_that_are_filled_take_memory(compute: Callable[[Tensor], Tensor]) -> None:
    """Not twice, if an op in place puts its result there."""
    module = Made(lambda self, x: compute(self.layer(x)), layer=nn.Linear(16, 128))
    assert_as_measured(module, lambda y, t: y.square().mean())


IN_PLACE: list[Callable[[Tensor], Tensor]] = [
    lambda y: y.relu_().mul_(2).add_(1).sigmoid_(),
    lambda y: F.silu(y.mul(2), inplace=True),
    lambda y: y.mul(2).add_(y),
    lambda y: torch.zeros(y.shape).add_(y.exp()).add_(y.sin()),
    lambda y: torch.zeros(y.shape[0], 8, 128).index_put_((torch.arange(len(y)), torch.tensor(1)), y).sum(1),
    lambda y: torch.zeros(len(y), 256).scatter(1, (y > 0).long(), y),  # which isn't in place
    doubled_in_part,
]


@pytest.mark.parametrize("compute", IN_PLACE)
def test_an_inference_in_place_has_one_tensor(compute: Callable[[Tensor], Tensor]) -> None:
    module, x = Made(lambda self, x: compute(self.layer(x)), layer=nn.Linear(16, 128)), torch.rand(256, 16)
    schedule = on_one_device(capture_inference(module, [x]), "2xcpu-core")
    with torch.no_grad(), Meter([*module.parameters(), x]) as meter:
        module(x)
    live = schedule.peak_memory[0] - schedule.problem.resident_bytes.sum()
    assert live == pytest.approx(meter.peak([]), rel=0.01)


def cached(self: Any, x: Tensor) -> Tensor:
    y = self.layer(x)
    keys = torch.zeros(len(y), 8, 128)
    for place in range(8):
        keys[:, place] = y * place
    return keys.mean(1)


def test_a_training_step_that_fills_a_table_has_one() -> None:
    """Eight changes of a part, each of which is traced as a new table."""
    assert_as_measured(Made(cached, layer=nn.Linear(16, 128)), lambda y, t: y.square().mean())


def test_what_is_made_in_place_on_another_device_has_memory_of_its_own() -> None:
    size = 4 * 256 * 128
    module = Made(lambda self, x: self.layer(x).relu_(), layer=nn.Linear(16, 128)).to("meta")
    graph = capture_inference(module, [torch.empty(256, 16)])
    problem = PlacementProblem(graph, load_cluster("2xcpu-core"))
    apart = np.array([kind == "aten.relu" for kind in graph.op_types], np.int64)
    assert simulate(problem, apart).peak_memory.tolist() == [problem.resident_bytes.sum() + size, 2 * size]


def assert_as_measured(module: nn.Module, loss: Callable[..., Tensor]) -> None:
    x, targets = torch.rand(256, 16), [torch.rand(256, 16)]
    schedule = on_one_device(capture_training(module, [x], loss, targets=targets), "2xcpu-core")
    live = schedule.peak_memory[0] - schedule.problem.resident_bytes.sum()
    assert live == pytest.approx(peak_of_training_step(module, [x], loss, targets), rel=0.01)
