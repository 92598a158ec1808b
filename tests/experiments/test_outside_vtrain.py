"""Plans that vTrain gives times of; the data is a folder beside the repository."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.outside_vtrain import (
    HEAD,
    WORDS,
    Layers,
    OutsideVtrain,
    Row,
    Size,
    layers_of,
    ratio_errors,
    read_rows,
    regret,
    step_of,
    with_factors,
    without_overhead,
)
from experiments.pipeline_steps import simulated
from placeto.problem.cluster import load_cluster
from placeto.problem.costs.collectives import collective_us

DATA = OutsideVtrain().data
CLUSTER = load_cluster("8xa100-40gb")
WIDTH = LENGTH = 1024
SIZE = Size(WIDTH, 16, LENGTH)
LAYER = WIDTH * (12 * WIDTH + 13)
"""Parameters of a layer: four matrices of 3, 1, 4 and 4 times the square of the width, their biases, and two norms."""


def rows_of(*times: float, micro_batches: tuple[int, ...] = (1, 1, 1, 1)) -> list[Row]:
    return [Row(SIZE, 2, 8, size, 12, 1, 2, 1, ms) for ms, size in zip(times, micro_batches, strict=False)]


def test_regret_is_the_time_of_the_first_choice_over_that_of_the_best() -> None:
    rows = rows_of(10.0, 20.0, 40.0, 80.0)
    assert regret(rows, np.array([2.0, 1.0, 3.0, 4.0])) == (pytest.approx(2.0), pytest.approx(2.0), 1.0, 1)
    assert regret(rows, np.array([4.0, 3.0, 2.0, 1.0])) == pytest.approx((8.0, 8.0, 2.0, 1))
    mean = 2.0**1.5  # of 1, 2, 4 and 8, the geometric one; of three at random, three in four have the best
    assert regret(rows, None) == pytest.approx((mean, 8.0, 2.0**0.25, 1))


def test_ratios_have_one_factor_for_each_group_and_factors_of_sizes_explain_the_rest() -> None:
    rows = rows_of(10.0, 10.0, 10.0, micro_batches=(1, 2, 2))
    ms = np.array([20.0, 40.0, 40.0])
    factor = 10.0 * 2 ** (5 / 3)  # the geometric mean of 20, 40 and 40
    assert ratio_errors(rows, ms) == pytest.approx(ms / factor - 1)
    assert with_factors(rows, ms) == pytest.approx([10.0, 10.0, 10.0])


def test_a_step_takes_its_micro_batches_the_bubble_and_the_sums() -> None:
    us = np.array([[0.0, 0.0, 0.0], [100.0, 300.0, 5.0], [0.0, 0.0, 0.0]])
    layers = Layers(us, 0 * us, np.array([(WORDS + LENGTH) * WIDTH, LAYER, WORDS * WIDTH + 2 * WIDTH]), np.ones((3, 3)))
    free = without_overhead(replace(CLUSTER, bandwidth=CLUSTER.bandwidth * 1e9, latency_us=CLUSTER.latency_us * 0))
    row = Row(SIZE, 4, 8, 1, 12, 1, 2, 2, 0.0)  # two stages of six layers, four micro-batches on each of two replicas
    made = replace(step_of(row, layers, CLUSTER), tied_bytes=0)
    link = float(CLUSTER.bandwidth[0, 1]), float(CLUSTER.latency_us[0, 1])
    sums = collective_us("all_reduce", 2 * (6 * LAYER + (WORDS + LENGTH) * WIDTH), 2, *link)
    passes = (4 + 1) * 6 * 400.0
    assert simulated(made, free).makespan_us == pytest.approx(passes + sums + 6 * 5.0, rel=1e-6)


def test_a_captured_layer_has_its_parameters_and_computes_its_forward_pass_twice() -> None:
    layers = layers_of(SIZE, 1, 1, CLUSTER)
    assert layers.parameters.tolist() == [(WORDS + LENGTH) * WIDTH, LAYER, WORDS * WIDTH + 2 * WIDTH]
    forward, backward, _ = layers.time_us[1]
    assert 2.5 * forward < backward < 3.5 * forward
    assert not layers.collective_us.any()


@pytest.mark.parametrize("width", [2, 8])
def test_a_rank_of_a_group_has_a_share_of_the_heads_and_sums_twice_in_each_pass(width: int) -> None:
    layers = layers_of(SIZE, 2, width, CLUSTER)
    matrices, shared = 12 * WIDTH * WIDTH + 7 * WIDTH, 6 * WIDTH  # two norms and the biases behind sums are whole
    head = WORDS * WIDTH // width + 2 * WIDTH
    assert layers.parameters.tolist() == [head - 2 * WIDTH + LENGTH * WIDTH, matrices // width + shared, head]
    link = float(CLUSTER.bandwidth[0, 1]), float(CLUSTER.latency_us[0, 1])
    us = collective_us("all_reduce", 2 * 2 * LENGTH * WIDTH, width, *link) + CLUSTER.overhead_us[0]
    assert layers.collective_us[1] == pytest.approx([2 * us, 4 * us, 0.0])  # two of them are computed again
    words = collective_us("all_reduce", 4 * 2 * LENGTH, width, *link) + CLUSTER.overhead_us[0]
    assert layers.collective_us[HEAD] == pytest.approx([3 * words, us, 0.0])  # the largest, their sum, the right one


@pytest.mark.skipif(not DATA.exists(), reason="the times aren't here")
def test_all_rows_are_read() -> None:
    rows = read_rows(DATA)
    assert len(rows) == 720
    assert sum(row.width == 1 for row in rows) == 320
    assert all(row.width * row.replicas * row.stages == row.gpus for row in rows)
