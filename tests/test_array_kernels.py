"""Kernels in place of numpy's functions give what numpy's give."""

import numpy as np
import pytest

from placeto.plumbing import array_kernels
from tests.inner_kernels import from_python

stable_argsort, number_up_to = from_python(array_kernels.stable_argsort), from_python(array_kernels.number_up_to)


@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_stable_argsort_and_number_up_to_are_those_of_numpy(kind: type) -> None:
    random = np.random.default_rng(0)
    for count in (0, 1, 2, 3, 7, 8, 9, 100):
        key = random.integers(-count, count // 3 + 1, count).astype(kind)
        order = stable_argsort(key)
        assert order.tolist() == np.argsort(key, kind="stable").tolist()
        for limit in range(-count - 1, count):
            expected = np.searchsorted(key[order], limit, side="right")
            assert number_up_to(key[order], count, float(limit)) == expected
