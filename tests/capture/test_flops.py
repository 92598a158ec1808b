"""FLOPs of products by hand, and computing ops that have no formula."""

from collections.abc import Callable
from math import log2
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from placeto.capture.costing.flops import FORMULAS, uncounted
from placeto.capture.trace import capture_inference, capture_training
from placeto.problem.graph.uncounted import UncountedWarning, without_formula
from tests.captures import Made


def trained(function: Callable[..., Tensor], first: Tensor) -> nn.Module:
    """A function of tensors, the first of which is a parameter, so that it can be trained."""
    parameter = nn.Parameter(first, requires_grad=first.is_floating_point())
    return Made(lambda self, *others: function(self.first, *others), first=parameter)


def r(*shape: int) -> Tensor:
    return torch.randn(*shape)


def c(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


def small(*shape: int) -> Tensor:
    return torch.randint(-5, 5, shape, dtype=torch.int8)


PRODUCTS: dict[str, tuple[Callable[..., Any], list[Tensor], float]] = {
    "mv": (torch.mv, [r(3, 4), r(4)], 2 * 3 * 4),
    "addmv": (torch.addmv, [r(3), r(3, 4), r(4)], 2 * 3 * 4),
    "addbmm": (torch.addbmm, [r(3, 5), r(2, 3, 4), r(2, 4, 5)], 2 * 2 * 3 * 4 * 5),
    "baddbmm": (torch.baddbmm, [r(2, 3, 5), r(2, 3, 4), r(2, 4, 5)], 2 * 2 * 3 * 4 * 5),
    "dot": (torch.dot, [r(7), r(7)], 2 * 7),
    "vdot": (torch.vdot, [r(7), r(7)], 2 * 7),
    "complex vdot": (torch.vdot, [c(7), c(7)], 8 * 7),
    "complex mm": (torch.mm, [c(3, 4), c(4, 5)], 8 * 3 * 4 * 5),
    "complex mv": (torch.mv, [c(3, 4), c(4)], 8 * 3 * 4),
    "int8": (torch._int_mm, [small(32, 16), small(16, 24)], 2 * 32 * 16 * 24),
    # (6, 5, 3) by weights for 4 second features, then the sum over these
    "bilinear": (F.bilinear, [r(6, 3), r(6, 4), r(5, 3, 4)], 2 * 6 * 5 * 3 * 4 + 2 * 6 * 5 * 4),
    "affine grid": (lambda t: F.affine_grid(t, [2, 3, 5, 6], align_corners=False), [r(2, 2, 3)], 2 * 2 * 30 * 2 * 3),
    "cdist by mm": (torch.cdist, [r(60, 8), r(70, 8)], 2 * 60 * 70 * 8),
    "cdist of a batch": (torch.cdist, [r(2, 6, 8), r(7, 8)], 2 * 2 * 6 * 7 * 8),
    "fft": (torch.fft.fft, [c(3, 16)], 5 * 3 * 16 * log2(16)),
    "rfft": (torch.fft.rfft, [r(3, 16)], 2.5 * 3 * 16 * log2(16)),
    "irfft": (torch.fft.irfft, [c(3, 9)], 2.5 * 3 * 16 * log2(16)),
    "fft2": (torch.fft.fft2, [c(3, 8, 16)], 5 * 3 * 128 * log2(128)),
    # 13 frames of 16 numbers, each 4 behind the one before
    "stft": (
        lambda x: torch.stft(x, 16, 4, window=torch.ones(16), center=False, return_complex=True),
        [r(2, 64)],
        2.5 * 2 * 13 * 16 * log2(16),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_flops_of_products_by_hand(name: str) -> None:
    function, (first, *others), expected = PRODUCTS[name]
    assert capture_inference(trained(function, first), others).flops.sum() == round(expected)


def test_gradients_of_distances_take_as_much_again() -> None:
    graph = capture_training(trained(torch.cdist, r(6, 8)), [r(7, 8)], lambda y: y.sum())
    assert graph.flops.sum() == 2 * 2 * 6 * 7 * 8


@pytest.mark.parametrize("frozen", [False, True])
def test_fused_attention_of_frozen_encoders_is_counted(frozen: bool) -> None:
    """A training step takes one kernel where nothing is trained; B batch, L words, D features, H inner ones."""
    b, length, d, h = 3, 5, 16, 32
    layer, head = nn.TransformerEncoderLayer(d, 2, h, batch_first=True).eval(), nn.Linear(d, d)
    inference = capture_inference(layer.requires_grad_(not frozen), [r(b, length, d)])
    step = capture_training(nn.Sequential(layer.requires_grad_(False), head), [r(b, length, d)], lambda y: y.sum())
    rows = b * length
    forward = 2 * rows * d * 4 * d + 4 * rows * length * d + 4 * rows * d * h
    assert inference.flops.sum() == forward
    assert step.flops.sum() == forward + 2 * 2 * rows * d * d
    fused = ["aten._native_multi_head_attention" in graph.op_types for graph in (inference, step)]
    assert fused == [False, True]


def test_tf32_is_for_products_alone() -> None:
    graph = capture_inference(trained(lambda a, b: torch.cdist(a @ b, b), r(4, 4)), [r(4, 4)], precision="tf32")
    dtypes = dict(zip(graph.op_types, graph.dtypes, strict=True))
    assert (dtypes["aten.mm"], dtypes["aten._cdist_forward"]) == ("tf32", "float32")


@pytest.fixture
def library() -> Any:
    with torch.library._scoped_library("placeto_test", "FRAGMENT") as made:
        made.define("twice(Tensor a, Tensor b) -> Tensor")
        made.impl("twice", lambda a, b: 2 * a @ b, "CPU")
        made.impl("twice", lambda a, b: a.new_empty(a.shape[0], b.shape[1]), "Meta")
        yield made


def test_computing_ops_without_a_formula_are_told(library: Any) -> None:
    module = trained(lambda a, b: torch.relu(torch.ops.placeto_test.twice(a, b)), r(3, 4))
    with pytest.warns(UncountedWarning, match=r"Made: there is no formula .* placeto_test.twice \(1 op\): only"):
        graph = capture_inference(module, [r(4, 5)])
    assert without_formula(graph) == {"placeto_test.twice": 1}
    packet = torch.ops.placeto_test.twice
    register_flop_formula(packet)(lambda a, b, *args, **kwargs: 2 * a[0] * a[1] * b[1])
    try:
        graph = capture_inference(module, [r(4, 5)])
        assert graph.flops.sum() == 2 * 3 * 4 * 5
        assert uncounted(graph) == ""
    finally:
        flop_registry.pop(packet)


def test_of_atens_ops_those_that_compute_are_told() -> None:
    """Linear algebra has no formula; neither gamma functions nor interpolation nor cross products need one."""
    for function, kind in ((torch.linalg.matrix_exp, "linalg_matrix_exp"), (torch.linalg.inv, "linalg_inv_ex")):
        with pytest.warns(UncountedWarning, match=rf"aten.{kind} \(1 op\)"):
            capture_inference(trained(function, r(4, 4)), [])

    def harmless(x: Tensor) -> Tensor:
        y = F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear")
        return torch.lgamma(y).norm() + torch.linalg.cross(x, x).sum() + torch.dist(x, x) + F.layer_norm(x, [3]).sum()

    assert uncounted(capture_inference(trained(harmless, r(3, 3)), [])) == ""


def test_names_of_formulas_are_ops() -> None:
    unknown = [kind for kind in FORMULAS if kind.startswith("aten.") and not hasattr(torch.ops.aten, kind[5:])]
    assert len(unknown) <= 2, "ops of other versions of PyTorch"
