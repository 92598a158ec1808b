"""Dtypes that don't go together are refused as torch's kernels refuse them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from placeto.capture.trace import capture_inference, capture_training
from placeto.errors import CaptureError
from tests.captures import called


def of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


HALF, LONG, INT = torch.float16, torch.int64, torch.int32
WRONG: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "linear": (functional.linear, [of(2, 4), of(3, 4, dtype=HALF)]),
    "mm": (torch.mm, [of(2, 4), of(4, 3, dtype=LONG)]),
    "addbmm": (torch.addbmm, [of(2, 3, dtype=HALF), of(2, 2, 4), of(2, 4, 3)]),
    "bias of conv1d": (functional.conv1d, [of(1, 3, 8), of(2, 3, 3), of(2, dtype=LONG)]),
    "layer norm": (lambda x, w: functional.layer_norm(x, (4,), w, w), [of(2, 4), of(4, dtype=HALF)]),
    "labels": (functional.cross_entropy, [of(2, 4), of(2, dtype=INT)]),
    "index_add": (lambda x, i, y: x.index_add(0, i, y), [of(2, 4), of(1, dtype=LONG), of(1, 4, dtype=HALF)]),
    "grid": (
        lambda x, at: functional.grid_sample(x, at, align_corners=False),
        [of(1, 1, 4, 4), of(1, 2, 2, 2, dtype=HALF)],
    ),
    "relu": (functional.relu, [of(3, dtype=torch.bool)]),
    "pool": (lambda x: functional.max_pool2d(x, 3, 2, 1), [of(1, 1, 8, 8, dtype=torch.bool)]),
    "and": (torch.bitwise_and, [of(3), of(3)]),
    "index_select": (lambda x, i: x.index_select(1, i), [of(2, 4), of(3)]),
    "index_copy": (lambda x, i, y: x.index_copy(0, i, y), [of(2, 4), of(1, dtype=INT), of(1, 4)]),
    "gather": (lambda x, i: x.gather(1, i), [of(2, 4), of(2, 3)]),
    "complex loss": (functional.mse_loss, [of(2, dtype=torch.complex64), of(2, dtype=torch.complex64)]),
    "large": (functional.linear, [of(2, 3000), of(3000, 3000, dtype=HALF)]),
    "large groups": (lambda x, w: functional.conv2d(x, w, groups=64), [of(1, 64, 40, 40), of(64, 1, 3, 3, dtype=HALF)]),
    "large list": (lambda x, i: x[i], [of(200, 200), of(20)]),
}
RIGHT: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "mixed layer norm": (lambda x, w: functional.layer_norm(x, (4,), w, w), [of(2, 4, dtype=torch.bfloat16), of(4)]),
    "integers": (torch.mm, [of(2, 4, dtype=LONG), of(4, 3, dtype=LONG)]),
    "promoted": (torch.add, [of(2), of(2, dtype=HALF)]),
    "labels": (functional.cross_entropy, [of(2, 4), of(2, dtype=LONG)]),
    "inputs by number": (functional.embedding, [of(200, dtype=INT), of(400, 300)]),
    "and": (torch.bitwise_and, [of(3, dtype=LONG), of(3, dtype=torch.bool)]),
    "singular": (torch.linalg.inv, [torch.eye(3)]),  # of zeros there is none
    "large grid": (  # whose formula of shapes asserts
        lambda x, at: functional.grid_sample(x, at, align_corners=False),
        [of(64, 8, 16, 32), of(64, 16, 32, 2)],
    ),
    "values": (lambda x: torch.multinomial(x, 2), [of(2, 4)]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_refuses_is_refused(name: str) -> None:
    function, arguments = WRONG[name]
    with pytest.raises((RuntimeError, IndexError)):
        function(*arguments)
    with pytest.raises(CaptureError, match=r"TypeError: aten\.\w+ takes no .*: cast one|(ind|bias).*; cast a tensor"):
        capture_inference(called(function), arguments)


@pytest.mark.parametrize("name", RIGHT)
def test_what_torch_takes_is_taken(name: str) -> None:
    function, arguments = RIGHT[name]
    function(*arguments)
    assert capture_inference(called(function), arguments).num_ops


def test_random_numbers_are_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    capture_inference(called(lambda x: x + torch.rand_like(x)), [of(3, dtype=torch.float64)])
    assert torch.equal(torch.rand(3), expected)


def test_what_only_gpus_compute_is_taken() -> None:
    x = of(3, 4, dtype=HALF)
    with pytest.raises(RuntimeError, match="not implemented for 'Half'"):
        torch.cdist(x, x)
    assert capture_inference(called(torch.cdist), [x, x]).num_ops
    with pytest.raises(CaptureError, match="cdist"):
        capture_inference(called(torch.cdist), [x, x.float()])


def test_the_layer_is_named() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).half())
    with pytest.raises(CaptureError, match=r"^Sequential: module '1' \(Linear\).*float16 and float32 .*: cast one"):
        capture_training(module, [of(2, 4)], lambda y: y.sum())
    graph = capture_training(module, [of(2, 4)], lambda y: y.sum(), precision="bf16")
    assert graph.num_ops
