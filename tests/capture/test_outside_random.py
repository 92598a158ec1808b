"""Steps that draw other random numbers than torch's are not run, and all generators stay as they were."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_inference, capture_training
from placeto.capture.user_errors import NotRunWarning
from placeto.errors import RunError
from tests.captures import Made, square
from tests.runtime.true import step_of


def skipping(self: Any, x: Tensor) -> Tensor:
    """Leaves out a layer in half of the calls."""
    return x if self.draw() < 0.5 else self.layer(x)


def shifting(self: Any, x: Tensor) -> Tensor:
    return self.layer(x) + self.draw()


@pytest.mark.parametrize("draw", [random.random, np.random.random_sample])
@pytest.mark.parametrize("forward", [skipping, shifting])
def test_a_step_with_numbers_of_python_or_numpy_is_placed_but_not_run(forward: Any, draw: Callable[[], float]) -> None:
    random.seed(0)
    np.random.seed(0)
    module, x = Made(forward, layer=nn.Linear(4, 4), draw=draw), torch.ones(2, 4)
    before = random.getstate(), np.random.get_state()[2]  # type: ignore[index]
    says = "Made can be placed, but not run: forward draws numbers with Python's or numpy's random"
    with pytest.warns(NotRunWarning, match=says):
        assert capture_inference(module, [x]).num_ops
    with pytest.warns(NotRunWarning), pytest.raises(RunError, match=says):
        step_of(module, [x], loss=square, micro_batches=2)
    assert before == (random.getstate(), np.random.get_state()[2])  # type: ignore[index]


def seeding(self: Any, x: Tensor) -> Tensor:
    """Seeds torch's generator before dropout."""
    torch.manual_seed(3)
    return self.dropout(self.layer(x))


def test_a_step_that_seeds_what_it_draws_is_placed_but_not_run() -> None:
    module, x = Made(seeding, layer=nn.Linear(4, 4), dropout=nn.Dropout(0.5)), torch.ones(2, 4)
    torch.manual_seed(3)  # as the module does
    state = torch.get_rng_state()
    with (
        pytest.warns(NotRunWarning),
        pytest.raises(RunError, match=r"^Made can be placed, but not run: forward seeds the random"),
    ):
        step_of(module, [x], loss=square)
    assert capture_training(module, [x], square, run=True).num_ops
    assert capture_inference(module.eval(), [x]).num_ops, "it draws no numbers"
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_that_draws_from_a_generator_of_its_own_is_placed_but_not_run() -> None:
    generator = torch.Generator()
    state = generator.get_state()
    module = Made(lambda self, x: self.layer(x) + torch.rand(4, generator=generator), layer=nn.Linear(4, 4))
    with (
        pytest.warns(NotRunWarning),
        pytest.raises(RunError, match=r"forward draws from a torch.Generator of its own, .*: leave generator= out"),
    ):
        step_of(module, [torch.ones(2, 4)], loss=square)
    assert torch.equal(generator.get_state(), state)
