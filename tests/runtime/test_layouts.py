"""Ops in place leave the layout of a tensor as it is, so that what is computed of it rounds as in eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.captures import Made
from tests.runtime.true import assert_as_eager

ROWS, FIRST = torch.tensor([0, 2]), torch.zeros(1, 8, dtype=torch.long)
CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "masked_fill_": lambda y: y.masked_fill_(y > 1, 0.5),
    "index_copy_": lambda y: y.index_copy_(0, ROWS, y[:2] * 2),
    "scatter_add_": lambda y: y.scatter_add_(0, FIRST, y[:1] * 3),
    "cumsum_": lambda y: y.cumsum_(0),
    "tril_": lambda y: y.tril_(),
    "addmm_": lambda y: y.addmm_(torch.ones(7, 2), torch.ones(2, 8)),
    "of a part": lambda y: y[1:4].masked_fill_(y[1:4] > 0, 2.0),
    "one after the other": lambda y: y.masked_fill_(y > 1, 0.5).scatter_(0, FIRST, 1.0).relu_(),
    "functional": lambda y: y.masked_fill(y > 1, 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_transposed_tensor_that_is_changed_in_place(change: str) -> None:
    def changed(self: Any, x: Tensor) -> Tensor:
        y = x.clone()  # which has the layout of x
        CHANGES[change](y)
        return self.layer(y)  # type: ignore[no-any-return]

    for seed in range(2):
        torch.manual_seed(seed)
        assert_as_eager(Made(changed, layer=nn.Linear(8, 8)), [torch.randn(8, 7).t()])
