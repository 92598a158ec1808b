from dataclasses import replace
from pathlib import Path

import pytest

from placeto.evaluation.figures import machine_figure
from placeto.evaluation.machines import FORMAT, Machine, MachinesRecord, machine_table, place_on, save_machines
from placeto.heuristics import HEURISTICS
from placeto.problem.checks import read_document
from placeto.problem.json_files import read_json
from placeto.problem.problem import PlacementProblem
from tests.toys import fork_of_chains, toy_cluster


@pytest.fixture(scope="module")
def machines() -> list[Machine]:
    """Two chains of ten ops of 10 us: on one device with no room, and on two for 36 an hour."""
    graph = fork_of_chains(2, 10).graph
    priced = replace(toy_cluster(2), name="priced", price_per_hour=36.0)
    tight = replace(toy_cluster(1, memory=150), name="tight")
    return [place_on(PlacementProblem(graph, cluster), HEURISTICS["etf"]) for cluster in (priced, tight)]


def test_a_machine_with_a_price(machines: list[Machine]) -> None:
    machine = machines[0]
    assert machine.result.makespan_us == 100.0
    assert machine.speed_up == 2.0
    assert machine.price_per_step == pytest.approx(36.0 * 100e-6 / 3600)
    assert machine.price_per_batch == pytest.approx(36.0 * 200e-6 / 2 / 3600)
    assert "1.00 times the samples a second" in machine.advice


def test_a_machine_that_is_too_small(machines: list[Machine]) -> None:
    machine = machines[1]
    assert not machine.result.fits
    assert (machine.speed_up, machine.price_per_step, machine.price_per_batch) == (None, None, None)


def test_table_file_and_picture(machines: list[Machine], tmp_path: Path) -> None:
    head, first, second = machine_table(machines).splitlines()
    assert head.split()[:4] == ["cluster", "step", "speed-up", "fits"]
    assert first.split()[:5] == ["priced", "100", "us", "2.00", "yes"]
    assert first.split()[-2:] == ["0.001", "0.001"]
    assert second.split()[:5] == ["tight", "200", "us", "-", "no"]
    assert "price" not in machine_table(machines[1:])
    save_machines(machines, "fork", tmp_path / "table.json")
    document = read_json(tmp_path / "table.json", ValueError)
    read_document(document, FORMAT, "a comparison", MachinesRecord, ValueError)
    assert document["graph"] == "fork"
    first, second = document["rows"]
    assert (first["cluster"], first["makespan_us"], first["single_us"], first["fits"]) == ("priced", 100.0, 200.0, True)
    assert (second["single_us"], second["price_per_step"], second["data_parallel"]["fits"]) == (None, None, False)
    axes = machine_figure(machines, "a title").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [100.0, 100.0, 0.0, 200.0, 200.0, 0.0]
