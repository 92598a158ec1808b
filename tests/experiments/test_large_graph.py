import resource
from functools import partial
from pathlib import Path

import pytest
import torch

from experiments.large_graph import (
    LargeGraphConfig,
    _measure,
    kept_stages,
    main,
    pass_table,
    place,
    place_op_by_op,
    placer_table,
    run_alone,
    stage_table,
    training,
)
from placeto.evaluation.comparison import Row
from placeto.formats.placement import load_placement
from placeto.policies.one_shot.gdp import GdpConfig
from placeto.problem.graph import save_graph
from tests.toys import random_graph


@pytest.fixture
def graph(tmp_path: Path) -> str:
    save_graph(random_graph(0, 40), tmp_path / "graph.json")
    return str(tmp_path / "graph.json")


def row(placer: str, us: float, fits: bool = True) -> Row:
    found = {"makespan_us": us, "relative": us / 4000, "fits": fits, "simulations": 1200, "seconds": 0.5}
    return {"placer": placer} | found


def test_tables_by_hand() -> None:
    stages = {
        "capture": {"seconds": 60.0, "cpu_s": 50.0, "peak_mb": 1500.0},
        "placement": {"seconds": 9.5, "cpu_s": 9.0, "peak_mb": 900.0},
    }
    assert stage_table(stages)[2:] == [
        ["capture", "60.0", "50.0", "1500"],
        ["placement", "9.5", "9.0", "900"],
        ["together", "69.5", "59.0", "1500"],
    ]
    lines = placer_table([row("single", 4000.0, fits=False), row("expert", 2000.0), row("gdp", 1000.0)])
    assert lines[2] == ["gdp", "1.0", "0.250", "0.500", "yes", "1,200", "0.50"]
    assert [line[0] for line in lines[2:]] == ["gdp", "expert", "single"]
    assert lines[4][3:5] == ["2.000", "no"]
    assert placer_table([row("single", 4000.0)])[2][3] == ""


def test_passes_by_hand(graph: str) -> None:
    config = LargeGraphConfig(graph=graph, smaller="ptb:test:0", cluster="2xv100", segments=(8, 16))
    names = [f"{each} {segment}" for each in ("ptb:test:0", graph) for segment in (8, 16)]
    passes = {name: {"seconds": 1.25 + i, "added_mb": 100.0 + i} for i, name in enumerate(names)}
    passes |= {f"{each} None": {"seconds": 1.0, "added_mb": 60.0} for each in ("ptb:test:0", graph)}
    lines = pass_table(config, passes)[2:]
    assert [line[0] for line in lines] == ["ptb:test:0"] * 2 + [graph] * 2
    assert lines[3][1:] == ["40", "1.0", "60", "16", "3.2", "43"]


def test_a_pass_is_of_single_ops_in_segments(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    real = torch.nn.functional.scaled_dot_product_attention

    def watched(query: torch.Tensor, *rest: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(query.shape))
        return real(query, *rest, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    place_op_by_op(graph, "2xv100", 16)
    assert set(shapes) == {(3, 4, 16, 16)}, "40 ops are 3 segments of 16"


def test_stages_of_other_settings_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.large_graph.run_alone", _measure)
    made: list[str] = []
    for settings in ("one", "one", "other"):
        kept_stages(tmp_path / "stages.json", settings, {name: partial(made.append, name) for name in "ab"})
    assert made == ["a", "b", "a", "b"]


def allocate() -> None:
    assert len(b"x" * 1_000_000_000) > 0


def test_memory_of_a_stage_is_that_of_a_process_of_its_own() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured = run_alone(allocate)
    assert 1000 < measured["peak_mb"] < 4000
    assert 900 < measured["added_mb"] < 1500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 500_000


def test_one_forward_pass_by_a_policy_of_the_seed(graph: str, tmp_path: Path) -> None:
    placements = []
    for number, seed in enumerate((0, 0, 1)):
        place(graph, "2xv100", None, "ops", seed, tmp_path / f"{number}.json")
        placements.append(load_placement(tmp_path / f"{number}.json"))
    assert placements[0].placement == placements[1].placement != placements[2].placement
    assert placements[0].simulations == 1


def test_training_is_of_the_units_that_are_placed() -> None:
    run = training(LargeGraphConfig(units="paper", train=("gnmt-2:train:0",), samples=8, entropy=0.5))
    assert run.config.policy == GdpConfig(units="paper")
    assert (run.config.learning.samples, run.config.learning.entropy) == (8, 0.5)
    assert (run.config.simulations, run.graphs) == (1600, ("gnmt-2:train:0",))
    assert training(LargeGraphConfig()).graphs == ("gnmt-8:test:0",)


@pytest.mark.parametrize("others", [(), ("ptb:test:0",)], ids=["itself", "another"])
def test_one_command_makes_tables_and_picture(
    others: tuple[str, ...],
    graph: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("experiments.large_graph.run_alone", _measure)
    monkeypatch.setenv("PLACETO_CACHE", str(tmp_path))  # put back what a stage sets in its process
    out = tmp_path / "out"
    config = LargeGraphConfig(
        out=out,
        graph=graph,
        cluster="2xv100",
        simulations=32,
        train=others,
        samples=8,
        placers=("single", "expert"),
        smaller="ptb:test:0",
        segments=(16, 64),
    )
    main(config)
    text = capsys.readouterr().out
    assert (out / "large_graph.md").read_text() == text[:-1]
    assert (out / "large_graph.png").stat().st_size > 10_000
    names = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert names[2:7] == ["| imports alone", "| capture", "| placement", "| simulation", "| together"]
    trained = set() if others else {"| gdp, best met in training"}
    assert set(names[9:-6]) == {"| gdp", "| single", "| expert"} | trained
    assert names[-4:] == ["| ptb:test:0"] * 2 + [f"| {graph}"] * 2
    assert "with 32 placements in" in text
    main(config)
    assert capsys.readouterr().out == text, "all was there"


def test_without_training_parameters_are_random(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.large_graph.run_alone", _measure)
    monkeypatch.setenv("PLACETO_CACHE", str(tmp_path))
    main(LargeGraphConfig(tmp_path, graph, "2xv100", 0, units="ops", placers=(), smaller=graph, segments=(8,)))
    text = capsys.readouterr().out
    assert "gdp over ops, random parameters;" in text
    assert not (tmp_path / "run").exists()
