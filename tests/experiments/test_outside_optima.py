"""Loads by the published definition, and the published optimum of the smallest graph."""

from pathlib import Path

import numpy as np
import pytest

from experiments.outside_optima import DATA, Optima, main, problem_of, published_load
from placeto.heuristics.throughput import contiguous

NODES = [
    {"id": 7, "supportedOnFpga": 1, "cpuLatency": 20.0, "fpgaLatency": 2.0, "size": 60e6, "colorClass": 1},
    {"id": 3, "supportedOnFpga": 1, "cpuLatency": 30.0, "fpgaLatency": 3.0, "size": 60e6, "colorClass": 2},
    {"id": 4, "supportedOnFpga": 1, "cpuLatency": 4.0, "fpgaLatency": 4.0, "size": 60e6, "colorClass": 3},
]
EDGES = [
    {"sourceId": 7, "destId": 3, "cost": 0.25, "size": 9e9},
    {"sourceId": 7, "destId": 4, "cost": 0.25, "size": 9e9},
    {"sourceId": 3, "destId": 4, "cost": 0.5, "size": 1.0},
]
DOCUMENT = {"maxSizePerFPGA": 150e6, "maxFPGAs": 2, "maxCPUs": 1, "nodes": NODES, "edges": EDGES}


def test_a_load_is_compute_and_each_tensor_once_and_a_cpu_pays_for_none() -> None:
    assert published_load(DOCUMENT, np.array([0, 1, 1]), 2) == pytest.approx(3.0 + 4.0 + 0.25)
    assert published_load(DOCUMENT, np.array([0, 1, 2]), 2) == pytest.approx(4.0)  # the CPU pays nothing
    assert published_load(DOCUMENT, np.array([0, 1, 0]), 2) == pytest.approx(2.0 + 4.0 + 0.25 + 0.5)
    with pytest.raises(ValueError, match="holds more"):
        published_load(DOCUMENT, np.array([0, 0, 0]), 2)
    apart = {**DOCUMENT, "nodes": [{**node, "colorClass": 1} for node in NODES]}
    with pytest.raises(ValueError, match="colour class"):
        published_load(apart, np.array([0, 0, 1]), 2)


def test_our_loads_are_those_of_the_definition() -> None:
    result = contiguous(problem_of(DOCUMENT, 2))
    assert result.greatest_us / 1e3 == pytest.approx(published_load(DOCUMENT, result.placement, 2), abs=1e-5)
    assert result.greatest_us == pytest.approx(4000.0)  # node 4 on the CPU


@pytest.mark.skipif(not (DATA / "dnn-partitioning").exists(), reason="the graphs lie beside the project")
def test_the_table_reaches_the_optimum(capsys: pytest.CaptureFixture[str]) -> None:
    main(Optima(Path(DATA), ("LayerGraphs/bert24_training",), 1.0))
    printed = capsys.readouterr().out
    assert "| 41.7458 | 41.7458 | yes |" in printed
    assert "reached on 1 of 1 graphs" in printed
