"""AMP's strategies on T4; the table of measured steps is a folder beside the repository."""

from pathlib import Path

import numpy as np
import pytest

from experiments.outside_amp import (
    EMBEDDING,
    FIRST,
    HEAD,
    LAYERS,
    NORM,
    OutsideAmp,
    exchange_us,
    layer_of,
    machines,
    main,
    read_strategies,
    simulate_all,
)
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.data_parallel import best_ring

DATA = OutsideAmp().data
needs_data = pytest.mark.skipif(
    not (DATA / "measured_parallel_steps.csv").exists(), reason="the measured steps aren't here"
)


def test_without_data_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(OutsideAmp(tmp_path))
    assert capsys.readouterr().out.startswith("skipped: there is no")


def test_modules_are_megatrons_layers() -> None:
    found = [layer_of(name) for name in ("word", "", "layers.0.up", f"layers.{LAYERS - 1}", "norm", "head.0", "loss")]
    assert found == [EMBEDDING, EMBEDDING, FIRST, NORM - 2, NORM, HEAD, HEAD]


def test_devices_of_a_host_share_its_card() -> None:
    cluster = machines()
    assert cluster.num_hosts == 4
    assert np.bincount(cluster.host).tolist() == [4] * 4
    assert cluster.bandwidth[0, 1] > cluster.bandwidth[0, 4]


def test_an_exchange_within_a_host_sends_as_many_bytes_as_a_ring() -> None:
    size = 160_000_000
    problem = PlacementProblem(ComputationGraph.from_ops("one", [{"name": "a"}]), machines(1))
    assert exchange_us(machines(1), size, "list") == pytest.approx(best_ring(problem, size)[1], rel=0.05)


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
    for found in simulate_all(pair):
        assert np.argsort(found).tolist() == np.argsort([each.step_s for each in pair]).tolist()
