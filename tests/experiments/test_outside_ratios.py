"""Ratios of steps; the table of measured steps is a folder beside the repository."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from experiments.outside_ratios import EMBEDDING, HEAD, LAYER, data_parallel, equal_stages, machines, parts_us
from graphs.llama import Size
from placeto.problem.cluster.boards import H100

SMALL = Size(2, 256, 4, 4, 512)


@pytest.mark.parametrize("stages", [1, 2, 8, 16])
def test_stages_hold_all_layers_in_order(stages: int) -> None:
    found = equal_stages(126, stages)
    assert list(itertools.chain(*found)) == list(range(128))  # with the embedding and the head
    sizes = [len(own) for own in found]
    assert len(found) == stages
    assert max(sizes) - min(sizes) <= 1


def test_data_parallel_takes_at_least_its_computation() -> None:
    cluster = machines("h100_80gb", 8)
    part = parts_us(SMALL, 1000, 64, 2, H100)
    alone = part[EMBEDDING].sum() + SMALL.layers * part[LAYER].sum() + part[HEAD].sum()
    assert data_parallel(SMALL, 1000, 64, 2, cluster) > alone
    fast = replace(cluster, bandwidth=np.full((8, 8), 1e12), latency_us=np.zeros((8, 8)))
    overheads = 2 * (SMALL.layers + 2) * H100.overhead_us  # of layers, in place of ops, which the parts count already
    assert data_parallel(SMALL, 1000, 64, 2, fast) == pytest.approx(alone + overheads)
