import json
from pathlib import Path

import pytest

from experiments import gate
from experiments.gate import CELLS, RECORD, Gate, compare, main, problem


def test_the_mean_may_be_worse_by_one_per_cent_and_a_cell_by_four() -> None:
    kept = {"a": ("p", 100.0), "b": ("q", 100.0)}
    assert compare({"a": ("p", 103.0), "b": ("q", 98.0)}, kept)[1] == []
    assert compare({"a": ("p", 105.0), "b": ("q", 90.0)}, kept)[1] == ["a: 5.0 % worse than the record"]
    assert compare({"a": ("p", 102.0), "b": ("q", 102.0)}, kept)[1] == [
        "the mean over cells is 2.00 % worse than the record"
    ]


def test_the_record_is_of_the_present_problems() -> None:
    kept = json.loads(RECORD.read_text())
    assert tuple(kept) == CELLS
    for cell in ("cifar10:test:0 on 4xv100", "transformer of 6 layers in 8 on 4xv100"):
        assert kept[cell][0] == problem(cell).hash


@pytest.mark.slow
def test_it_places_and_fails_where_a_cell_became_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "SIMULATIONS", 50)
    cell, file = CELLS[0], tmp_path / "record.json"
    config = Gate(cells=(cell,), file=file, workers=1)
    assert main(config) == 1
    assert f"{cell}: the record is of another graph, cluster or costs, or has none" in capsys.readouterr().out
    assert main(Gate(record=True, cells=(cell,), file=file, workers=1)) == 0
    ((of, us),) = json.loads(file.read_text()).values()
    assert of == problem(cell).hash
    file.write_text(json.dumps({cell: (of, us / 1.1)}))
    capsys.readouterr()
    assert main(config) == 1
    printed = capsys.readouterr().out
    assert f"{cell}: 10.0 % worse than the record" in printed
    assert "the mean over cells is 10.00 % worse" in printed
