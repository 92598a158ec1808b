"""Random numbers that a traced step would not draw as the module does.

Of Python and numpy a traced step would have the same ones, or take the same branch, for ever. Where forward seeds the
generator of torch, a traced step would not seed it.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class OutsideRandom:
    """The generators of the modules `random` and `numpy.random`, as they were when this was made."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)

    def changed(self) -> bool:
        """Whether numbers were drawn since."""
        return random.getstate() != self._python or _key(np.random.get_state(legacy=False)) != _key(self._numpy)

    def restore(self) -> None:
        """Put them back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)


class Seeds:
    """Which seeds torch's generator is given while this is open. A context manager, which takes its place."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def __enter__(self) -> Seeds:
        self._generator = torch.random.default_generator
        vars(torch.random)["default_generator"] = self
        return self

    def __exit__(self, *details: object) -> None:
        vars(torch.random)["default_generator"] = self._generator

    def manual_seed(self, seed: int) -> torch.Generator:
        """As a generator's."""
        self.given.append(seed)
        return self._generator.manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


def _key(state: Any) -> tuple[bytes, int]:
    return state["state"]["key"].tobytes(), state["state"]["pos"]
