"""The cells of the notebook run one after the other, with fewer iterations, and their kept outputs are small."""

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "curves_and_schedule.ipynb"


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    shorter = {'ITERATIONS, OUT = 40, "runs/notebook"': 'ITERATIONS, OUT = 2, "run"', '"train", 6': '"train", 1'}
    shorter |= {"annealed=0.0": "annealed=0.0, labels=16", "simulations=300": "simulations=100"}
    names: dict[str, Any] = {}
    for cell in cells():
        source = "".join(cell["source"]).replace("%matplotlib inline\n", "")  # a command of notebooks alone
        for long, short in shorter.items():
            source = source.replace(long, short)
        exec(compile(source, NOTEBOOK.name, "exec"), names)
    assert names["ITERATIONS"] == 2
    assert len(names["points"]) == 2  # a loss an iteration
    assert [line.get_label() for line in names["left"].lines[:1]] == ["validation/end"]
    assert len(names["schedules"]) == 3
    one, etf, trained = (schedule.makespan_us for schedule in names["schedules"].values())
    assert trained <= etf < one
    names["plt"].close("all")


def test_outputs_are_pictures_and_small() -> None:
    outputs = [output for cell in cells() for output in cell["outputs"]]
    assert len(outputs) == 2
    assert all("image/png" in output["data"] for output in outputs)
    assert NOTEBOOK.stat().st_size < 250_000
