"""Which losses are told of, as they mean something else in micro-batches than on the whole batch."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from placeto.capture.building.loss_reductions import LossWarning
from placeto.capture.trace import capture_training
from tests.captures import Made

CLASSES, NUMBERS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), torch.rand(8, 3)
MASK = torch.tensor([1.0, 1, 0, 1, 0, 1, 1, 1])
SOME_IGNORED = torch.tensor([0, -100, 2, 0, 1, 2, 0, 1])
Loss = Callable[..., Tensor]
TOLD: dict[str, tuple[Loss, Tensor, str]] = {
    "sum": (lambda y, t: (y - t).square().sum(), NUMBERS, "a sum"),
    "of what is no sum": (lambda y, t: F.mse_loss(y, t, reduction="sum"), NUMBERS, "a sum"),
    "divided, not linear": (lambda y, t: ((y - t) / len(y)).square().sum(), NUMBERS, "a sum"),
    "divided in part": (lambda y, t: ((y - t).square() / len(y) + y).sum(), NUMBERS, "a sum"),
    "of classes": (lambda y, t: F.cross_entropy(y, t, reduction="sum"), CLASSES, "a sum"),
    "a part": (lambda y, t: F.mse_loss(y, t) - 0.5 * y.exp().sum(), NUMBERS, "a sum"),
    "several heads": (lambda y, t: torch.stack([F.mse_loss(y, t), y.sum()]).mean(), NUMBERS, "a sum"),
    "smooth": (lambda y, t: F.cross_entropy(y, t, ignore_index=0, label_smoothing=0.1), CLASSES, "ignores some"),
    "padded targets": (F.cross_entropy, SOME_IGNORED, "ignores some targets"),
    "masked": (lambda y, t: (y.square().mean(1) * t).sum() / t.sum(), MASK, "a masked mean"),
    "at least one": (lambda y, t: (y[:, 0] * t).sum() / t.sum().clamp(min=1), MASK, "a masked mean"),
    "mean of a mask": (lambda y, t: (y.mean(1) * t).mean() / t.mean(), MASK, "a masked mean"),
    "overlap": (lambda y, t: (y * t).sum() / (y.sum() + t.sum()), NUMBERS, "a masked mean"),
    "norm": (lambda y, t: (y - t).norm(), NUMBERS, "vector_norm over samples"),
    "root": (lambda y, t: F.mse_loss(y, t).sqrt(), NUMBERS, "sqrt of a mean or a sum over samples"),
    "square of a mean": (lambda y, t: (y - t).mean(0).square().sum(), NUMBERS, "pow of a mean"),
    "dot": (lambda y, t: torch.dot(y.flatten(), t.flatten()), NUMBERS, "a sum"),
    "maximum": (lambda y, t: (y - t).abs().max(), NUMBERS, "max over samples"),
    "maxima": (lambda y, t: (y - t).T.max(1).values.mean(), NUMBERS, "max over samples"),
    "distance": (lambda y, t: torch.dist(y, t), NUMBERS, "dist over samples"),
    "highest": (lambda y, t: (y - t).flatten().topk(2).values.mean(), NUMBERS, "topk over samples"),
    "contrastive": (lambda y, t: F.cross_entropy(y @ t.T, torch.arange(len(y))), NUMBERS, "compares samples"),
    "negatives": (lambda y, t: F.cosine_similarity(y, t.roll(1, 0)).mean(), NUMBERS, "compares samples"),
    "centred": (lambda y, t: (y - y.mean(0)).square().mean(), NUMBERS, "compares samples"),
    "over samples": (lambda y, t: (y.softmax(0) * t).mean(), NUMBERS, "compares samples"),
    "sorted": (lambda y, t: F.mse_loss(y.sort(0).values, t.sort(0).values), NUMBERS, "compares samples"),
    "pairs": (lambda y, t: (y[:, None] - y).square().mean(), NUMBERS, "compares samples"),
    "distances": (lambda y, t: torch.cdist(y, t).mean(), NUMBERS, "compares samples"),
    "the first one": (lambda y, t: (y - y[:1]).square().mean(), NUMBERS, "chooses samples"),
    "neighbours": (lambda y, t: (y[1:] - y[:-1]).square().mean(), NUMBERS, "chooses samples"),
    "mixed": (lambda y, t: F.mse_loss(y, t[torch.randperm(len(t))]), NUMBERS, "chooses samples"),
    "halves": (lambda y, t: F.mse_loss(*y.chunk(2)), NUMBERS, "compares samples"),
    "halves by places": (lambda y, t: F.mse_loss(y[: len(y) // 2], y[len(y) // 2 :]), NUMBERS, "compares samples"),
    "halves of columns": (lambda y, t: F.mse_loss(*(y - t)[:, 1:].chunk(2)), NUMBERS, "compares samples"),
    "other halves": (
        lambda y, t: sum(F.mse_loss(a, b) for a, b in zip(y.chunk(2), t.chunk(2)[::-1], strict=True)) / 2,
        NUMBERS,
        "compares samples",
    ),
    "by a number before": (lambda y, t: ((y - t).square() / 8).sum(), NUMBERS, "a sum"),
    "to a row": (lambda y, t: (y - y.index_select(0, torch.tensor([0]))).square().mean(), NUMBERS, "chooses samples"),
    "with a sum": (lambda y, t: ((y - t).square() + y.exp().sum()).mean(), NUMBERS, "a sum"),
    "weights": (lambda y, t: F.cross_entropy(y, t, weight=torch.ones(3)), CLASSES, "weights classes"),
}
NOT_TOLD: dict[str, tuple[Loss, Tensor]] = {
    "mean": (lambda y, t: (y - t).square().mean(), NUMBERS),
    "cross entropy": (F.cross_entropy, CLASSES),
    "smooth": (lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1), CLASSES),
    "padded targets without values": (F.cross_entropy, SOME_IGNORED.to("meta")),
    "divided": (lambda y, t: (y - t).square().sum() / len(y), NUMBERS),
    "divided before": (lambda y, t: ((y - t).square() / len(y)).sum(), NUMBERS),
    "divided and added": (lambda y, t: (-(y - t).abs().sum(1) / len(y) + y.mean(1) / len(y)).sum(), NUMBERS),
    "by all numbers": (lambda y, t: (y - t).square().sum() / y.numel(), NUMBERS),
    "batchmean": (lambda y, t: F.kl_div(y, t, reduction="batchmean"), NUMBERS),
    "means of columns": (lambda y, t: sum(F.mse_loss(y[:, i], t[:, i]) for i in range(3)) / 3, NUMBERS),
    "softmax of each": (lambda y, t: (y.softmax(1) * t.cumsum(1).flip(1)).mean(), NUMBERS),
    "distances in each": (lambda y, t: torch.cdist(y[..., None], t[..., None]).mean(), NUMBERS),
    "flat": (lambda y, t: F.cross_entropy(y.view(-1, 3), t.view(-1)), CLASSES),
    "pairs of neighbours": (lambda y, t: (y[::2] - y[1::2]).square().mean(), NUMBERS),
    "in halves": (
        lambda y, t: sum(F.mse_loss(a, b) for a, b in zip(y.chunk(2), t.chunk(2), strict=True)) / 2,
        NUMBERS,
    ),
    "added up": (lambda y, t: sum((y[i] - t[i]).square() for i in range(len(y))).sum() / len(y), NUMBERS),
    "by the numbers of the input": (lambda y, t: (y - t).square().sum() / (len(y) * 4), NUMBERS),
    "heads": (lambda y, t: F.mse_loss(*(y - t).repeat(1, 2).split(3, 1)), NUMBERS),
    "of each class": (lambda y, t: -y.log_softmax(1)[torch.arange(len(y)), t].mean(), CLASSES),
    "of merged numbers": (lambda y, t: (y - t).flatten().view(len(y), 3).sum(1).mean(), NUMBERS),
    "gradients": (lambda y, t: torch.func.grad(lambda z: (z - t).pow(4).sum())(y).square().mean(), NUMBERS),
    "focal": (lambda y, t: (1 - (e := F.cross_entropy(y, t, reduction="none")).neg().exp()).mul(e).mean(), CLASSES),
}


def told(loss: Loss, target: Tensor, micro_batches: int = 2, module: nn.Module | None = None) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", LossWarning)
        step: Any = module or nn.Linear(4, 3), [torch.rand(8, 4)], loss
        capture_training(*step, targets=[target], micro_batches=micro_batches)
    return [str(one.message) for one in seen]


@pytest.mark.parametrize("case", TOLD)
def test_a_loss_of_another_meaning_is_told_of_once(case: str) -> None:
    loss, target, why = TOLD[case]
    (message,) = told(loss, target)
    assert message.startswith("Linear: in micro-batches, the loss isn't that of the batch: it ")
    assert why in message


def test_the_loss_of_the_whole_batch_is_not_told_of() -> None:
    assert not told(*TOLD["sum"][:2], micro_batches=1)


@pytest.mark.parametrize("micro_batches", [4, 8])  # of two samples and of one: 2 may be their number, or half a square
@pytest.mark.parametrize(
    "loss", [lambda y, t: ((y - t).square() / 2).sum(), lambda y, t: (y - t).square().sum() / 2], ids=["first", "last"]
)
def test_half_a_square_is_no_mean(loss: Loss, micro_batches: int) -> None:
    (message,) = told(loss, NUMBERS, micro_batches)
    assert "a sum" in message


@pytest.mark.parametrize("micro_batches", [2, 8])  # of four samples, and of one
@pytest.mark.parametrize("case", NOT_TOLD)
def test_means_are_not_told_of(case: str, micro_batches: int) -> None:
    assert not told(*NOT_TOLD[case], micro_batches)


@pytest.mark.parametrize(("reduced", "expected"), [("mean", 0), ("sum", 1)])
def test_a_module_that_merges_one_sample_with_other_dimensions(reduced: str, expected: int) -> None:
    """Attention sees a sample of each micro-batch as a matrix, whose rows are then its tokens."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", LossWarning)
        capture_training(layer, [torch.rand(4, 5, 8)], lambda y: getattr(y, reduced)(), micro_batches=4)
    assert len(seen) == expected
    assert all("a sum over samples" in str(one.message) for one in seen)


def test_sums_behind_an_embedding_are_told_of() -> None:
    """Embeddings add a dimension behind that of the samples; a sum over all elements is one over samples, too."""
    words, batch_last = torch.zeros(8, 5, dtype=torch.long), nn.GRU(6, 6)
    for module in (
        nn.Embedding(9, 6),
        nn.Sequential(nn.Embedding(9, 6), Made(lambda self, y: self.rnn(y.transpose(0, 1))[0], rnn=batch_last)),
    ):
        step: Any = module, [words]
        with pytest.warns(LossWarning, match="a sum"):
            capture_training(*step, lambda y: y.square().sum(), micro_batches=2)


def test_experts_that_sort_their_tokens_are_not_told_of() -> None:
    """Tokens are put in the order of their experts, and back: no sample depends on another one."""

    def sorted_by(self: Any, x: Tensor) -> Tensor:
        order = self.router(x).argmax(-1).argsort()
        return torch.zeros_like(x).index_add(0, order, self.expert(x[order]))

    module = Made(sorted_by, router=nn.Linear(4, 2), expert=nn.Linear(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LossWarning)
        capture_training(module, [torch.rand(8, 4)], lambda y: y.square().mean(), micro_batches=2)


def test_sums_over_parameters_are_not_told_of() -> None:
    module = nn.Linear(4, 3)
    assert not told(lambda y, t: F.mse_loss(y, t) + module.weight.square().sum(), NUMBERS, module=module)
