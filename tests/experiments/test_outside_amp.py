"""AMP's strategies on T4; the table of measured steps is a folder beside the repository."""

import numpy as np
import pytest

from experiments.outside_amp import OutsideAmp, exchange_us, machines, read_strategies, simulate_all
from placeto.problem.costs.collectives import SHARE
from placeto.simulator.tool_steps.data_parallel import best_ring
from tests.cases import problem_of

DATA = OutsideAmp().data
needs_data = pytest.mark.skipif(
    not (DATA / "measured_parallel_steps.csv").exists(), reason="the measured steps aren't here"
)


def test_an_exchange_within_a_host_sends_as_many_bytes_as_a_ring() -> None:
    size = 160_000_000
    problem = problem_of([{"name": "a"}], machines(1))
    ring_us = SHARE * best_ring(problem, size)[1]  # over all of a link
    assert exchange_us(machines(1), size, "list") == pytest.approx(ring_us, rel=0.05)


@needs_data
def test_strategies_fill_the_machines_and_the_batch() -> None:
    found = read_strategies(DATA)
    assert len(found) == 16
    for strategy in found:
        assert strategy.stages * strategy.replicas == 16
        assert strategy.replicas * strategy.micro_batch * strategy.micro_batches == 32
        assert len(strategy.cuts) == strategy.stages + 1


@needs_data
def test_four_stages_are_faster_than_sixteen() -> None:
    pair = [each for each in read_strategies(DATA) if each.stages in (4, 16) and each.micro_batch == 1]
    assert np.argsort(simulate_all(pair)).tolist() == np.argsort([each.step_s for each in pair]).tolist()
