import json
from pathlib import Path

import pytest

from experiments import gate
from experiments.gate import CELLS, RECORD, Gate, failures, main, problem


def test_the_mean_may_be_worse_by_one_per_cent_and_a_cell_by_four() -> None:
    assert failures({"a": 1.03, "b": 0.98}) == []
    assert failures({"a": 1.05, "b": 0.9}) == ["a: 5.0 % worse than the record"]
    assert failures({"a": 1.02, "b": 1.02}) == ["the mean over cells is 2.00 % worse than the record"]


def test_the_record_is_of_the_present_problems() -> None:
    kept = json.loads(RECORD.read_text())
    assert tuple(kept) == CELLS
    for cell in ("cifar10:test:0 on 4xv100", "transformer of 6 layers in 8 on 4xv100"):
        assert kept[cell]["problem"] == problem(cell).hash


def test_it_fails_where_a_cell_became_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter([(each, 100.0) for each in "pp"] + [("p", 110.0), ("p", 100.0), ("q", 100.0), ("p", 100.0)])
    cells, file = CELLS[:2], tmp_path / "record.json"
    monkeypatch.setattr(gate, "in_processes", lambda work, items, *more: [(item, next(found)) for item in items])
    assert main(Gate(record=True, cells=cells, file=file)) == 0
    assert "as good as the record: 1.0000" in capsys.readouterr().out
    assert main(Gate(cells=cells, file=file)) == 1
    printed = capsys.readouterr().out
    assert f"worse: {CELLS[0]}: 10.0 % worse than the record" in printed
    assert "worse: the mean over cells is 4.88 % worse" in printed
    assert main(Gate(cells=cells, file=file)) == 1
    assert f"{CELLS[0]}: the record is of another graph, cluster or costs" in capsys.readouterr().out
    assert main(Gate(cells=("none",))) == 2
