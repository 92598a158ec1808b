import heapq

import numpy as np
import pytest

from placeto.heuristics.heaps import new_heaps, put, put_new, without_first


@pytest.mark.parametrize("seed", range(20))
def test_heaps_give_what_sorted_lists_do(seed: int) -> None:
    """Nodes are put into three heaps, taken from the top of one, and now and then put into another with a new key."""
    random = np.random.default_rng(seed)
    heaps, roots, plain = new_heaps(300), [-1, -1, -1], [[], [], []]
    for number in range(600):
        heap = int(random.integers(3))
        if random.random() < 0.5 and number < 300:
            key = float(random.integers(10)), int(random.integers(1000))
            roots[heap] = put_new(heaps, roots[heap], *key)
            heapq.heappush(plain[heap], key)
        elif plain[heap]:
            node, key = roots[heap], heapq.heappop(plain[heap])
            assert (heaps.us[node], heaps.at[node]) == key
            roots[heap] = without_first(heaps, node)
            if random.random() < 0.3:
                other, us = int(random.integers(3)), float(random.integers(10))
                roots[other] = put(heaps, roots[other], node, us)
                heapq.heappush(plain[other], (us, key[1]))
    assert [root < 0 for root in roots] == [not keys for keys in plain]
