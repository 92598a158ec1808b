"""A step in parts of the batch."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_inference, capture_training
from placeto.errors import CaptureError
from placeto.runtime.program import Program
from placeto.runtime.real_steps import real_inference, real_training
from tests.captures import Checkpointed, Made, Shared, meta, mlp, square


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


X, Y = torch.randn(12, 6), torch.arange(12) % 3


def text() -> nn.Module:
    """A transformer with dropout and one weight for words in and out."""
    return Made(
        lambda self, words: self.layer(self.embed(words)) @ self.embed.weight.T,
        embed=nn.Embedding(32, 8),
        layer=nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
    )


def running() -> nn.Module:
    """A net with running statistics, and an op in place."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 2))


STEPS = {  # module, its input, precision, and the hash in 3 micro-batches, as when all micro-batches were traced
    "mlp": (mlp, (12, 8), "fp32", "c53c0462a1eb5c34"),
    "shared": (Shared, (12, 8), "fp32", "522ee58becf75823"),
    "checkpointed": (lambda: Checkpointed(8, 2), (12, 8), "fp32", "a004d47df286f973"),
    "text": (text, (12, 6), "bf16", "a2116154b5e74601"),
    "running": (running, (12, 3, 4, 4), "fp32", "cbdbcd39879693de"),
}


@pytest.mark.parametrize("name", STEPS)
def test_graphs_are_those_of_traces_of_all_micro_batches(name: str) -> None:
    module, shape, precision, expected = STEPS[name]
    x = meta(*shape).long() if name == "text" else meta(*shape)
    loss = None if name == "checkpointed" else square
    graph = capture_training(module().to("meta"), [x], loss, micro_batches=3, precision=precision)
    assert graph.hash[:16] == expected


@pytest.mark.parametrize("count", [2, 3, 12])
def test_gradients_are_those_of_the_whole_batch(count: int) -> None:
    step = real_training(model(), [X], nn.functional.cross_entropy, targets=[Y], micro_batches=count)
    loss, *gradients = Program.of(step.unrolled.traced).compile()(*step.leaves)
    assert step.eager is not None
    assert torch.allclose(loss, nn.functional.cross_entropy(model()(X), Y))
    assert all(torch.allclose(ours, whole, atol=1e-6) for ours, whole in zip(gradients, step.eager(), strict=True))


def test_inference_is_a_stream_of_requests() -> None:
    module: Any = Made(lambda self, x: {"y": self.inner(x), "weight": self.inner[0].weight}, inner=model())
    step = real_inference(module, [X], micro_batches=3)
    made = step.capture.rebuild(Program.of(step.unrolled.traced).compile()(*step.leaves))
    assert torch.allclose(made["y"], module(X)["y"], atol=1e-6)
    assert torch.equal(made["weight"], module.inner[0].weight)


def test_targets_of_another_length_are_told_to_be_whole() -> None:
    words = torch.arange(24) % 3  # two for each of the 12 samples
    pairs = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), nn.Flatten(0, 1))
    capture_training(pairs, [X], nn.functional.cross_entropy, targets=[words])
    message = r"shapes \(12, 6\), the targets \(24,\), and only tensors of length 12 are split into micro-batches"
    with pytest.raises(CaptureError, match=message):
        capture_training(pairs, [X], nn.functional.cross_entropy, targets=[words], micro_batches=2)


def test_outputs_that_micro_batches_have_no_rows_of_are_refused() -> None:
    class Summed(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            y = super().forward(x)
            return y, y.sum(dim=0)

    message = r"a tensor of shape \(3,\) for each micro-batch of 4, which can't be joined: .* or use micro_batches=1"
    with pytest.raises(CaptureError, match=message):
        capture_inference(Summed(6, 3), [X], micro_batches=3)
    capture_training(Summed(6, 3), [X], lambda made: made[0].mean(), micro_batches=3)


class Constants(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.tensor([1.0, 2.0, 3.0]) + x.new_tensor(0.5)


class Scaled(nn.Linear):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * scale


def test_numbers_that_depend_on_the_samples_are_refused() -> None:
    x, listed = torch.zeros(6, 4), Made(lambda self, x: (self.inner(x), [1] * len(x)), inner=nn.Linear(4, 4))
    counted = Made(lambda self, x: (self.inner(x), x.shape[self.axis]), inner=nn.Linear(4, 4), axis=0)
    with pytest.raises(CaptureError, match="Made: the module returns 2 for a micro-batch and 6 for the whole batch"):
        capture_inference(counted, [x], micro_batches=3)
    with pytest.raises(CaptureError, match="Made: the module returns None for a micro-batch and 1 for the whole batch"):
        capture_inference(listed, [x], micro_batches=3)
    turned = Made(
        lambda self, x: (self.inner(x), self.inner(x).T @ torch.ones(len(x), len(x)), 4), inner=nn.Linear(4, 2)
    )
    with pytest.raises(
        CaptureError, match=r"shape \(2, 2\) for a micro-batch and of shape \(2, 6\) for the whole batch"
    ):
        capture_inference(turned, [x], micro_batches=3)
    counted.axis = 1
    step = real_inference(counted, [x], micro_batches=3)
    assert step.capture.rebuild([x])[1] == 4


@pytest.mark.parametrize(
    ("kind", "inputs", "count"), [(Constants, [X], 4), (Scaled, {"x": X, "scale": torch.rand(3)}, 2)]
)
def test_constants_and_what_has_another_length_are_in_every_part(kind: Any, inputs: Any, count: int) -> None:
    step = real_training(kind(6, 3), inputs, lambda y: y.mean(), micro_batches=count)
    _, *gradients = Program.of(step.unrolled.traced).compile()(*step.leaves)
    assert step.eager is not None
    assert all(torch.allclose(ours, whole, atol=1e-6) for ours, whole in zip(gradients, step.eager(), strict=True))


@pytest.mark.parametrize(
    ("count", "x", "message"),
    [
        (0, X, "micro_batches must be at least 1, not 0"),
        (5, X, "a batch of 12 can't be split into 5 micro-batches of one size"),
        (2, torch.tensor(1.0), "no input and no target is a tensor of samples"),
    ],
)
def test_what_cant_be_split(count: int, x: Tensor, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture_training(model(), [x], lambda y: y.sum(), micro_batches=count)


def test_tensors_in_objects_are_no_batch() -> None:
    class Reads(nn.Linear):
        def forward(self, given: SimpleNamespace) -> torch.Tensor:
            return super().forward(given.x)

    for capture in (lambda *how, **more: capture_training(*how, lambda y: y.mean(), **more), capture_inference):
        with pytest.raises(CaptureError, match="tensors in a SimpleNamespace can't be split into micro-batches"):
            capture(Reads(6, 3), [SimpleNamespace(x=X)], micro_batches=2)


def test_arguments_that_forward_changes_are_refused() -> None:
    class Appends(nn.Linear):
        def forward(self, x: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
            y = super().forward(x)
            seen.append(y)
            return y

    module, arguments = Appends(6, 3), [X, []]
    with pytest.raises(
        CaptureError, match=r"Appends: forward changes a list.*return what is new, or use micro_batches=1"
    ):
        capture_training(module, arguments, lambda y: y.mean(), micro_batches=2)
    with pytest.raises(CaptureError, match="Appends: forward changes a list"):
        capture_inference(module, arguments, micro_batches=2)
    assert capture_training(module, arguments, lambda y: y.mean()).num_ops
    assert arguments[1] == []


def test_a_loss_with_a_tensor_of_the_batch_is_not_split() -> None:
    def loss(output: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, Y)

    assert capture_training(model(), [X], loss).num_ops > 0
    for count in (2, 12):  # parts of one sample would be compared with all targets
        with pytest.raises(CaptureError, match=r"tensor of shape \(12,\) that isn't an argument .*give it as a target"):
            capture_training(model(), [X], loss, micro_batches=count)

    def weighted(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, weights)

    weights = torch.ones(3)
    assert capture_training(model(), [X], weighted, targets=[Y], micro_batches=2).num_ops > 0


def test_what_might_be_a_mask_is_not_cut_to_one_row() -> None:
    def forward(self: Any, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.linear(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    module, inputs = Made(forward, linear=nn.Linear(4, 12)), [torch.empty(6, 6, 4), torch.zeros(6, 6)]
    with pytest.raises(
        CaptureError, match=r"an input of shape \(6, 6\) is as long as the batch in two dimensions, as a"
    ):
        capture_training(module, inputs, square, micro_batches=6)
    capture_training(module, [torch.empty(6, 5, 4), torch.zeros(5, 5)], square, micro_batches=6)


def test_parameters_with_as_many_rows_as_a_micro_batch_are_not_joined() -> None:
    module: Any = Made(lambda self, x: (self.inner(x), self.inner.weight * 1.0), inner=nn.Linear(6, 4))
    step = real_inference(module, [X], micro_batches=3)
    y, weight = step.capture.rebuild(Program.of(step.unrolled.traced).compile()(*step.leaves))
    assert torch.equal(weight, module.inner.weight)
    assert torch.allclose(y, module.inner(X), atol=1e-6)
