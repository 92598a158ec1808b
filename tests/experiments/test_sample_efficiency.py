from dataclasses import replace
from pathlib import Path

import pytest

from experiments.runs import CHEAP, problem_of
from experiments.sample_efficiency import (
    SCRATCH,
    SampleConfig,
    first_reach,
    main,
    plan,
    search_row,
    table,
    targets,
    tuning_table,
)
from placeto.evaluation.comparison import Row, load_rows
from placeto.policies.one_shot.gdp import GdpConfig
from placeto.training.config import ONE_SHOT_LEARNING, OneShotTrainConfig
from placeto.training.recipes import PAPERS, recipe_config
from placeto.training.trainer import train


def row(placer: str, seed: int, history: list[tuple[int, float, float]], fits: bool = True) -> Row:
    best = history[-1][2]
    return {
        "graph": "g",
        "cluster": "c",
        "placer": placer,
        "seed": seed,
        "makespan_us": best,
        "relative": best / 100,
        "lower_bound_us": 1.0,
        "fits": fits,
        "simulations": 50,
        "seconds": 5.0,
        "history": [list(point) for point in history],
    }


def test_first_reach() -> None:
    falling = row("p", 0, [(1, 0.5, 100.0), (7, 1.5, 80.0), (9, 2.5, 60.0)])
    assert first_reach(falling, 100.0) == (1, 0.5)
    assert first_reach(falling, 99.0) == first_reach(falling, 80.0) == (7, 1.5)
    assert first_reach(falling, 60.0 * (1 - 1e-12)) == (9, 2.5), "but for rounding it is there"
    assert first_reach(falling, 59.0) is None


def rows() -> list[Row]:
    return [
        row(CHEAP, 0, [(5, 0.1, 80.0)]),
        row("placeto", 0, [(1, 0.0, 100.0), (10, 1.0, 70.0)]),
        row("placeto", 1, [(1, 0.0, 100.0), (20, 3.0, 70.0), (30, 4.0, 50.0)]),
        row("seq2seq", 0, [(16, 1.0, 75.0), (40, 2.0, 70.0)]),
        row("seq2seq", 1, [(20, 1.0, 70.0)]),
        row("seq2seq", 2, [(1, 1.0, 10.0)], fits=False),
        row("gdp", 0, [(16, 1.0, 90.0)]),
        row("gdp", 1, [(16, 1.0, 79.0)]),
    ]


def test_targets_are_the_heuristic_and_the_references_best_that_fits() -> None:
    assert targets(rows(), "seq2seq", 0.02) == (80.0, pytest.approx(71.4))
    assert targets(rows(), "grouper", 0.02) == (80.0, None)


def test_table_by_hand() -> None:
    config = SampleConfig(placers=("placeto", "seq2seq", "gdp"))
    known = [r for r in rows() if r["fits"]]
    head, _, cheap, placeto, seq2seq, gdp = table(known, config)
    assert head[6] == "(b) / placeto"
    assert cheap[:2] == ["g, c, best cheap heuristic", "0.800"]
    assert placeto == ["g, c, placeto", "0.600 ± 0.141", *["15 ± 7 (2/2)", "2.0 ± 1.4"] * 2, "", "50", "5.0"]
    assert seq2seq[2:7] == ["18 ± 3 (2/2)", "1.0 ± 0.0", "30 ± 14 (2/2)", "1.5 ± 0.7", "2.00"]
    assert gdp[2:7] == ["16 (1/2)", "1.0", "not reached (0/2)", "", ""]


def test_tuning_table_by_hand() -> None:
    """Seed 0 is compared with seed 0; what has no counterpart is left out."""
    config = SampleConfig(placers=("gdp", "tuned=c.pt"), reference="gdp")
    tuned = [row("tuned", 0, [(16, 0.5, 95.0), (40, 1.0, 90.0)]), row("tuned", 1, [(8, 0.5, 80.0)])]
    scratch = [row("gdp", 0, [(64, 0.5, 99.0), (400, 1.0, 90.0)]), row("gdp", 1, [(64, 1.0, 79.0)])]
    lines = tuning_table([*rows()[:1], *scratch, *tuned, row("tuned", 2, [(1, 1.0, 1.0)])], config)[2:]
    assert lines == [
        ["g, c, tuned, 0", "0.900", "400", "0.900", "40", "10.0"],
        ["g, c, tuned, 1", "0.790", "64", "0.800", "not reached", ""],
    ]


def test_what_is_tuned_begins_with_its_checkpoint(tmp_path: Path) -> None:
    learning = replace(ONE_SHOT_LEARNING["gdp"], graphs=2, samples=4)
    small = OneShotTrainConfig(str(tmp_path), placer="gdp", policy=GdpConfig(hidden=8), learning=learning, iterations=1)
    train(small, {"a": problem_of("ptb:validation:0", "2xv100")}, None)
    config = SampleConfig(
        families=("ptb",), indices=(1, 2), clusters=("2xv100",), placers=("gdp", f"tuned={tmp_path}"), seeds=1
    )
    runs = plan(config)
    assert [run.graphs for run in runs] == [("ptb:test:1",)] * 2 + [("ptb:test:2",)] * 2
    assert [run.initial for run in runs] == [None, str(tmp_path)] * 2
    scratch, tuned = (run.config for run in list(runs)[:2])
    assert tuned.policy == GdpConfig(hidden=8)
    assert (scratch.learning.soften, tuned.learning.soften, tuned.learning.graphs) == (1.0, 3.0, 1)
    assert (scratch.simulations, tuned.simulations) == (8000, 800)


def test_searches_begin_on_one_device() -> None:
    found = search_row("anneal", "ptb:validation:0", "2xv100", 30, 0)
    count, _, us = found["history"][0]
    assert (count, us * found["relative"] / found["makespan_us"]) == (1, 1.0)
    assert found["simulations"] == 30


def test_recipes_of_papers_are_known_by_their_suffix() -> None:
    labels = ("seq2seq-paper", "grouper-paper", "gdp-paper", "mlp-paper", "mlp")
    config = SampleConfig(families=("ptb",), clusters=("2xv100",), placers=labels, seeds=1)
    for run, label in plan(config).items():
        name = run.config.placer
        expected = PAPERS[name] if label != name else recipe_config(name, "ours", "")
        assert run.config.policy == expected.policy
        assert run.config.learning == replace(expected.learning, graphs=1)  # type: ignore[arg-type]


def test_a_run_for_each_graph_cluster_placer_and_seed() -> None:
    config = SampleConfig(families=("nmt",), placers=("placeto", "placeto-paper", "seq2seq-paper", "gdp"), seeds=2)
    runs = plan(config)
    assert len(runs) == len({run.config.out for run in runs}) == 2 * 4 * 2
    assert all(run.config.placer == label for run, label in runs.items() if label != "seq2seq-paper")
    heads = {run.config.policy.devices for run, label in runs.items() if label == "placeto-paper"}  # type: ignore[union-attr]
    assert heads == {2, 4}, "of the clusters"
    for run in runs:
        learning = run.config.learning
        assert getattr(learning, "graphs", 1) == 1
        assert getattr(learning, "starts", "single") == "single"


def test_one_command_makes_table_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.sample_efficiency.SCRATCH", replace(SCRATCH, replicas=2, moves=4))
    config = SampleConfig(
        out=tmp_path / "out",
        families=("ptb",),
        split="validation",
        clusters=("2xv100",),
        placers=("placeto", "seq2seq"),
        seeds=1,
        simulations=40,
        processes=1,
    )
    main(config)
    text = capsys.readouterr().out
    assert (tmp_path / "out" / "sample_efficiency.md").read_text() == text[:-1]
    assert (tmp_path / "out" / "sample_efficiency.png").stat().st_size > 10_000
    found = {row["placer"]: row for row in load_rows(tmp_path / "out" / "rows.json")}
    assert set(found) == {"placeto", "seq2seq", CHEAP, "anneal from one device", "hillclimb from one device"}
    for row in found.values():
        assert row["history"][-1][2] == pytest.approx(row["makespan_us"])
    assert found["placeto"]["history"][0][2] * found["placeto"]["relative"] == found["placeto"]["makespan_us"]
    assert all(row["simulations"] >= 40 for placer, row in found.items() if placer != CHEAP)
    main(config)
    assert capsys.readouterr().out == text, "all was there"
