"""A U-Net in stages, as torchgpipe ran it; the data is a folder beside the repository."""

import numpy as np
import pytest
import torch

from experiments.outside_torchgpipe import (
    CHANNELS,
    MODELS,
    OutsideTorchgpipe,
    Parts,
    Setting,
    amoebanet,
    parts_of,
    read_settings,
    step_us,
    unet,
)
from placeto.problem.cluster import load_cluster

DATA = OutsideTorchgpipe().data
CLUSTER = load_cluster("8xp40")
TIMES = np.array([[10.0, 20.0, 1.0]] * 2)


def setting(micro_batches: int, checkpointed: int, stages: tuple[int, ...]) -> Setting:
    return Setting("unet", "one", 4, micro_batches, stages, checkpointed, 0.0)


def test_it_has_the_leaf_modules_that_the_balances_divide() -> None:
    assert (len(unet()), len(amoebanet())) == (241, 24)


def test_amoebanet_has_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        sizes = [
            sum(each.numel() for layer in amoebanet(filters) for each in layer.parameters()) for filters in (208, 416)
        ]
    assert sizes == pytest.approx([81.5e6, 319.0e6], rel=0.001)


@pytest.mark.parametrize(("checkpointed", "again"), [(0, 0), (3, 30)])
def test_two_stages_fill_and_drain_once_in_each_direction(checkpointed: int, again: int) -> None:
    """The last micro-batch is the first to come back; what is computed again comes behind it."""
    span = step_us(setting(4, checkpointed, (1, 1)), Parts(TIMES, {(0, 1): 0}), CLUSTER)
    assert span == pytest.approx(5 * 10 + 5 * 20 + again + 1 + 2 * 15, abs=15)  # links take 15 us each way


def test_what_crosses_is_the_border_and_the_skips() -> None:
    parts = parts_of(setting(4, 3, (30, 120, 91)), CLUSTER)
    pixels = 4 * MODELS["unet"][1] ** 2
    assert parts.crossing[0, 2] == CHANNELS * pixels  # one image's skip of the first level
    assert parts.crossing[0, 1] == 2 * CHANNELS * pixels // 4  # in the second level, which is half as wide and high
    assert (parts.time_us[:, :2] > 0).all()


@pytest.mark.skipif(not DATA.exists(), reason="the speeds aren't here")
def test_settings_are_read() -> None:
    settings = read_settings(DATA)
    assert [sum(each.leaves) for each in settings] == [241] * 5 + [24] * 6
    assert [each.checkpointed for each in settings] == [0, 1, 31, 15, 39, 1, 3, 31, 1, 3, 31]
