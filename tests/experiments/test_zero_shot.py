from dataclasses import replace
from pathlib import Path

import pytest

from experiments.rows import CHEAP
from experiments.runs import PRETRAINED
from experiments.zero_shot import ZeroShotConfig, distribution, main, pretraining, table
from placeto.evaluation.comparison import Row, load_rows
from placeto.training.config import LearningConfig, OneShotLearningConfig, TraversalLearningConfig, default_config


def row(graph: str, placer: str, relative: float, seed: int = 0) -> Row:
    times = {"makespan_us": 10 * relative, "relative": relative, "lower_bound_us": 1.0, "fits": True}
    where = {"graph": graph, "cluster": "c", "placer": placer, "seed": seed}
    return where | times | {"simulations": 4, "seconds": 0.5}


def test_distribution() -> None:
    assert distribution([0.5, 0.9, 0.5, 0.7]) == [(0.5, 0.0), (0.5, 0.25), (0.5, 0.5), (0.7, 0.75), (0.9, 1.0)]


def test_table_by_hand() -> None:
    rows = [row("a", "p", 0.4), row("a", "p", 0.6, 1), row("b", "p", 0.8), row("b", "p", 1.0, 1), row("a", "q", 0.45)]
    rows += [row("b", "q", 1.2)]
    head, _, p, q = table(rows)
    assert head[:4] == ["placer", "mean", "median", "worst"]
    assert p == ["p", "0.700 ± 0.141", "0.700", "1.000", "1.188", "1/2", "4/4", "4", "0.50"]
    assert q == ["q", "0.825", "0.825", "1.200", "1.312", "1/2", "2/2", "4", "0.50"]


def test_test_graphs_are_unseen() -> None:
    for run in pretraining(ZeroShotConfig(), "nmt").values():
        assert not any(":test:" in graph for graph in (*run.graphs, *run.validation))
        assert not set(run.graphs) & set(run.validation)


@pytest.mark.slow
def test_one_command_makes_tables_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.zero_shot.split_size", lambda family, split: 1)  # to train and to validate on
    small = {
        "placeto": LearningConfig(supervised_moves=2, labels=2, annealed=0.0),
        "placeto-paper": TraversalLearningConfig(episodes=2),
        "gdp": OneShotLearningConfig(),
    }
    monkeypatch.setattr(
        "experiments.zero_shot.default_config",
        lambda placer, out: replace(default_config(placer, out), learning=small[placer]),
    )
    config = ZeroShotConfig(
        out=tmp_path / "out",
        families=("ptb",),
        cluster="2xv100",
        placers=("placeto", "placeto-paper", "gdp"),
        minutes=0.01,
        seeds=1,
        count=2,
        searches=("anneal@20",),
        tune_simulations=10,
        processes=1,
    )
    main(config)
    text = capsys.readouterr().out
    assert (tmp_path / "out" / "zero_shot.md").read_text() == text[:-1]
    assert (tmp_path / "out" / "zero_shot.png").stat().st_size > 10_000
    rows = load_rows(tmp_path / "out" / "rows.json")
    counts = {placer: sum(row["placer"] == placer for row in rows) for placer in {row["placer"] for row in rows}}
    expected = {f"{placer} zero-shot": 2 for placer in small} | {"random": 2, "anneal@20": 2}
    assert counts == expected | {CHEAP: 2, PRETRAINED: 2, "placeto fine-tuned": 2}
    assert all(row["simulations"] > 10 for row in rows if row["placer"] == "placeto fine-tuned")
