"""AMP's strategies on T4; the table of measured steps is a folder beside the repository."""

import numpy as np
import pytest

from experiments.outside_amp import OutsideAmp, read_strategies, simulate_all

DATA = OutsideAmp().data
needs_data = pytest.mark.skipif(
    not (DATA / "measured_parallel_steps.csv").exists(), reason="the measured steps aren't here"
)


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
