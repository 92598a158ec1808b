"""Random numbers of Python and numpy: a traced step would have the same ones, or take the same branch, for ever."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


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


def _key(state: Any) -> tuple[bytes, int]:
    return state["state"]["key"].tobytes(), state["state"]["pos"]
