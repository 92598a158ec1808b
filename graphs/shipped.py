"""The families whose graphs come with the package; the models behind them are imported when one is built."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from graphs import store
from graphs.family import Family

if TYPE_CHECKING:
    from graphs.training_step import TrainingStep


def _drawn_by(module: str) -> Callable[[np.random.Generator], TrainingStep]:
    """Return the function `sample` of a module of this package; the module is imported when it is called."""

    def sample(rng: np.random.Generator) -> TrainingStep:
        step: TrainingStep = import_module(f"graphs.{module}").sample(rng)
        return step

    sample.__module__ = f"graphs.{module}"  # whose source decides whether a graph in the cache is still the same
    return sample


_DESCRIPTIONS = {
    "cifar10": "convolutional cells sampled from an ENAS-like space",
    "ptb": "language models of ENAS recurrent cells, unrolled, with embedding and softmax",
    "nmt": "translation: LSTM encoder and decoder with attention",
}
SHIPPED: dict[str, Family] = {
    name: Family(name, description, _drawn_by(name), data=store.DATA) for name, description in _DESCRIPTIONS.items()
}
"""Name -> family, whose networks are drawn by the module of the same name."""
