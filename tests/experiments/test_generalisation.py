from pathlib import Path

import pytest

from experiments.generalisation import (
    COMPARISONS,
    Comparison,
    GeneralisationConfig,
    Graphs,
    gains,
    main,
    training_runs,
)
from experiments.rows import CHEAP, problem_of
from experiments.runs import PRETRAINED
from placeto.evaluation.comparison import Row, load_rows
from placeto.training.config import LearningConfig, TrainConfig


def row(placer: str, graph: str, makespan_us: float, seed: int = 0) -> Row:
    return {"placer": placer, "graph": graph, "makespan_us": makespan_us, "seed": seed}


def test_gains_are_means_over_graphs_for_each_seed() -> None:
    rows = [row(CHEAP, "a", 10.0), row(CHEAP, "b", 100.0)]
    rows += [row("x", "a", 8.0), row("x", "b", 100.0), row("x", "a", 9.0, 1), row("x", "b", 110.0, 1)]
    assert gains(rows, "x") == pytest.approx([10.0, 0.0])


def test_trained_and_placed_graphs_are_disjoint_and_halves_are_halves() -> None:
    small, large = (Graphs(("ptb",), half=half) for half in ("small", "large"))
    both = small.names("test") + large.names("test")
    assert sorted(both) == sorted(Graphs(("ptb",)).names("test"))
    sizes = [[problem_of(name, "4xv100").num_ops for name in half.names("test")] for half in (small, large)]
    assert max(sizes[0]) <= min(sizes[1])
    assert Graphs(("ptb", "nmt")).names("test", 2) == ("ptb:test:0", "ptb:test:1", "nmt:test:0", "nmt:test:1")
    for run in training_runs(GeneralisationConfig(seeds=1)).values():
        assert {name.split(":")[1] for name in run.graphs} == {"train"}
        assert {name.split(":")[1] for name in run.validation} == {"validation"}


@pytest.mark.slow
def test_one_command_makes_tables_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.generalisation.split_size", lambda family, split: 2)
    ptb, eight = Graphs(("ptb",)), Graphs(("ptb",), ("8xv100",))
    monkeypatch.setitem(COMPARISONS, "small", Comparison({"ptb": ptb}, {"ptb": ptb, "eight": eight}))

    def short(out: str, *, minutes: float, seed: int) -> TrainConfig:
        learning = LearningConfig(graphs=1, supervised_moves=2, labels=2, annealed=0.0)
        return TrainConfig(out, iterations=2, seed=seed, learning=learning)

    monkeypatch.setattr("experiments.generalisation.TrainConfig", short)
    config = GeneralisationConfig(tmp_path, ("small",), seeds=2, count=1, processes=1)
    main(config)
    out = capsys.readouterr().out
    assert out.strip() == (tmp_path / "generalisation.md").read_text().strip()
    assert "| trained on | ptb, % | eight, % |" in out
    assert f"| {PRETRAINED} | " in out
    assert (tmp_path / "generalisation.png").stat().st_size > 1000
    rows = load_rows(tmp_path / "rows.json")
    assert len(rows) == 2 * (2 + 1 + 1)
    cheap = {(row["graph"], row["cluster"]): row["makespan_us"] for row in rows if row["placer"] == CHEAP}
    assert all(row["makespan_us"] <= cheap[row["graph"], row["cluster"]] for row in rows)
