"""Steps that depend on random numbers of Python or numpy are refused, and their generators stay as they were."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.errors import CaptureError
from placeto.capture.trace import capture_inference, capture_training


class Skips(nn.Module):
    """Leaves out some of its layers, or adds what is drawn."""

    def __init__(self, draw: Callable[[], float], share: float = 0.5, adds: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))
        self.draw, self.share, self.adds = draw, share, adds

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            number = self.draw()
            x = x + self.adds * number
            x = x if number < self.share else layer(x)
        return x


@pytest.mark.parametrize("draw", [random.random, np.random.random_sample])
@pytest.mark.parametrize(("share", "adds"), [(0.5, 0.0), (0.0, 1.0)])
def test_a_step_that_would_be_another_is_refused(draw: Callable[[], float], share: float, adds: float) -> None:
    random.seed(0)
    np.random.seed(0)
    module, x = Skips(draw, share, adds), torch.ones(2, 4)
    before = random.getstate(), np.random.get_state()[2]  # type: ignore[index]
    for capture in (capture_inference, lambda *how: capture_training(*how, lambda y: y.sum())):
        with pytest.raises(CaptureError, match=r"forward draws numbers with Python's or numpy's random, .*--run"):
            capture(module, [x])
    assert capture_inference(module, [x], run=True).num_ops
    assert before == (random.getstate(), np.random.get_state()[2])  # type: ignore[index]


def test_numbers_that_change_nothing_may_be_drawn() -> None:
    plain, drawing = (capture_inference(Skips(draw, 0.0), [torch.ones(2, 4)]) for draw in (lambda: 0.5, random.random))
    assert plain.hash == drawing.hash


class Seeded(nn.Module):
    """Seeds torch's generator before dropout of a probability."""

    def __init__(self, seed: Callable[[], int], probability: float = 0.5) -> None:
        super().__init__()
        self.layer, self.seed, self.dropout = nn.Linear(4, 4), seed, nn.Dropout(probability)

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(self.seed())
        return self.dropout(self.layer(x))


def test_a_step_that_seeds_what_it_draws_is_refused() -> None:
    fixed, fresh = Seeded(lambda: 3), Seeded(lambda: torch.seed() % 2**31)  # as Reformer of transformers does
    x, state = torch.ones(2, 4), torch.get_rng_state()
    with pytest.raises(CaptureError, match=r"forward seeds the random numbers of torch, with 3, .*--run"):
        capture_training(fixed, [x], lambda y: y.sum())
    assert capture_training(fresh, [x], lambda y: y.sum()).num_ops
    assert capture_training(fixed, [x], lambda y: y.sum(), run=True).num_ops
    assert capture_inference(fixed.eval(), [x]).num_ops, "it draws no numbers"
    assert torch.equal(torch.get_rng_state(), state)


class Generates(nn.Module):
    """Draws from a generator, which it may make or seed in forward."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how, self.generator = nn.Linear(4, 4), how, torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator() if self.how == "made" else self.generator
        if self.how == "seeded":
            generator.manual_seed(5)
        return self.layer(x) + torch.rand(4, generator=generator)


def test_generators_that_forward_makes_or_seeds_are_refused() -> None:
    x, kept = torch.ones(2, 4), Generates("kept")
    state = kept.generator.get_state()
    assert capture_inference(kept, [x]).num_ops
    assert torch.equal(kept.generator.get_state(), state)
    for how in ("made", "seeded"):
        with pytest.raises(CaptureError, match=r"^Generates: forward makes or seeds a torch.Generator, .* made, or"):
            capture_training(Generates(how), [x], lambda y: y.sum())
