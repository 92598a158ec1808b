from pathlib import Path

import numpy as np
import pytest

from experiments.fine_tuning import FRESH, PASS, TUNED, FineTuningConfig, main, placements, plan, table
from placeto.evaluation.comparison import Row, load_rows
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import default_config


def row(graph: str, placer: str, makespan_us: float, *history: tuple[float, float]) -> Row:
    spent = {"relative": makespan_us / 100.0, "simulations": 50, "seconds": 0.5, "family": "x"}
    return {
        "graph": graph,
        "placer": placer,
        "makespan_us": makespan_us,
        "history": [[n, 0.1, us] for n, us in history],
    } | spent


def test_placements_are_counted_to_the_target_of_their_own_graph() -> None:
    rows = [row("a", PASS, 100.0), row("b", PASS, 50.0)]
    rows += [row("a", TUNED, 98.0, (1, 100.0), (7, 99.0), (9, 98.0)), row("b", TUNED, 49.9, (1, 60.0), (8, 49.9))]
    assert placements(rows, TUNED, 1.0) == [7.0, np.inf]
    assert placements(rows, TUNED, 0.0) == [1.0, 8.0]
    lines = table(rows, 1.0)
    assert lines[2] == [f"x, {PASS}", "0.7500", "", "", "50", "0.5"]
    assert lines[3][2:4] == ["not reached", "1/2"]
    assert table(rows, 0.0)[3][2:4] == ["4", "2/2"]


def test_fine_tuning_begins_with_the_checkpoint_and_both_with_the_heuristics(tmp_path: Path) -> None:
    runs = plan(FineTuningConfig(tmp_path, ("ptb",), count=1, seeds=1))
    by_label = {label: run for run, label in runs.items()}
    assert set(by_label) == {TUNED, FRESH}
    assert by_label[TUNED].initial == "pretrained"
    assert by_label[FRESH].initial is None
    assert {run.graphs for run in runs} == {("ptb:test:0",)}
    learning = [by_label[label].config.learning for label in (TUNED, FRESH)]
    assert [of.starts for of in learning] == ["heuristics", "heuristics"]  # type: ignore[union-attr]
    assert learning[0].reinforcement == 1.0 > learning[1].reinforcement


def test_one_command_makes_table_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = FineTuningConfig(tmp_path, ("ptb",), count=1, simulations=200, seeds=1, processes=1)
    main(config)
    out = capsys.readouterr().out
    assert out.strip() == (tmp_path / "fine_tuning.md").read_text().strip()
    assert f"| ptb, {FRESH} | 0." in out
    assert (tmp_path / "fine_tuning.png").stat().st_size > 1000
    rows = load_rows(tmp_path / "rows.json")
    assert len(rows) == 1 + 2 + 2
    for own in rows:
        if own["placer"] in (TUNED, FRESH):
            assert own["simulations"] >= 200
            assert load_checkpoint(tmp_path / "runs" / f"ptb-test-0-{own['placer'].replace(' ', '-')}-0")
    written = (tmp_path / "rows.json").read_bytes()
    main(config)
    assert (tmp_path / "rows.json").read_bytes() == written, "made again though it was there"


def test_a_checkpoint_of_another_placer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.fine_tuning.pretrained_config", lambda *_: default_config("seq2seq", ""))
    with pytest.raises(SystemExit, match="pretrained holds the placer seq2seq, not placeto"):
        plan(FineTuningConfig(tmp_path))
