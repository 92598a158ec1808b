import resource
from pathlib import Path

import pytest

from experiments.large_graph import (
    LargeGraphConfig,
    _measure,
    main,
    place,
    placer_table,
    run_alone,
    stage_table,
    training,
)
from placeto.evaluate import Row
from placeto.graph import save_graph
from placeto.placement import load_placement
from placeto.policies.gdp import GdpConfig
from tests.toys import random_graph


@pytest.fixture
def graph(tmp_path: Path) -> str:
    save_graph(random_graph(0, 40), tmp_path / "graph.json")
    return str(tmp_path / "graph.json")


def row(placer: str, us: float, fits: bool = True) -> Row:
    return {"placer": placer, "makespan_us": us, "relative": us / 4000, "fits": fits, "seconds": 0.5}


def test_tables_by_hand() -> None:
    stages = {"capture": {"seconds": 60.0, "peak_mb": 1500.0}, "placement": {"seconds": 9.5, "peak_mb": 900.0}}
    assert stage_table(stages)[2:] == [
        ["capture", "60.0", "1500"],
        ["placement", "9.5", "900"],
        ["together", "69.5", "1500"],
    ]
    lines = placer_table([row("single", 4000.0, fits=False), row("expert", 2000.0), row("gdp", 1000.0)])
    assert lines[2] == ["gdp", "1.0", "0.250", "0.500", "yes", "0.50"]
    assert [line[0] for line in lines[2:]] == ["gdp", "expert", "single"]
    assert lines[4][3:5] == ["2.000", "no"]
    assert placer_table([row("single", 4000.0)])[2][3] == ""


def allocate() -> None:
    assert len(b"x" * 1_000_000_000) > 0


def test_memory_of_a_stage_is_that_of_a_process_of_its_own() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured = run_alone(allocate)
    assert 1000 < measured["peak_mb"] < 4000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 500_000


def test_one_forward_pass_by_a_policy_of_the_seed(graph: str, tmp_path: Path) -> None:
    placements = []
    for number, seed in enumerate((0, 0, 1)):
        place(graph, "2xv100", None, "ops", seed, tmp_path / f"{number}.json")
        placements.append(load_placement(tmp_path / f"{number}.json"))
    assert placements[0].placement == placements[1].placement != placements[2].placement
    assert placements[0].simulations == 1


def test_training_is_of_the_units_that_are_placed() -> None:
    run = training(LargeGraphConfig(minutes=1.0, units="paper", train=("gnmt-2:train:0",)))
    assert run.config.policy == GdpConfig(units="paper")
    assert run.config.learning.warmup == 0.5
    assert run.graphs == ("gnmt-2:train:0",)


def test_one_command_makes_tables_and_picture(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.large_graph.run_alone", _measure)
    monkeypatch.setenv("PLACETO_CACHE", str(tmp_path))  # put back what a stage sets in its process
    out = tmp_path / "out"
    config = LargeGraphConfig(
        out=out, graph=graph, cluster="2xv100", minutes=0.002, train=(graph,), placers=("single", "expert")
    )
    main(config)
    text = capsys.readouterr().out
    assert (out / "large_graph.md").read_text() == text[:-1]
    assert (out / "large_graph.png").stat().st_size > 10_000
    names = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert names[2:7] == ["| imports alone", "| capture", "| placement", "| simulation", "| together"]
    assert set(names[9:]) == {"| gdp", "| single", "| expert"}
    main(config)
    assert capsys.readouterr().out == text, "all was there"
