"""Storages larger than their tensors: as a run on the cpu makes them, and in the memory of a step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from placeto.capture.trace import capture_training
from placeto.capture.tracing.storages import LARGER, as_stored
from tests.capture.test_memory import on_one_device
from tests.captures import Made
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
    ],
)
def test_tensors_that_are_filled_take_memory(compute: Callable[[Tensor], Tensor]) -> None:
    """Not twice, if an op in place puts its result there."""
    module = Made(lambda self, x: compute(self.layer(x)), layer=nn.Linear(16, 128))
    assert_as_measured(module, lambda y, t: y.square().mean())


def assert_as_measured(module: nn.Module, loss: Callable[..., Tensor]) -> None:
    x, targets = torch.rand(256, 16), [torch.rand(256, 16)]
    schedule = on_one_device(capture_training(module, [x], loss, targets=targets), "2xcpu-core")
    live = schedule.peak_memory[0] - schedule.problem.resident_bytes.sum()
    assert live == pytest.approx(peak_of_training_step(module, [x], loss, targets), rel=0.01)
