from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from placeto.training.curves import Curves, CurvesError
from tests.problem.test_files import limited


def test_numbers_are_read_again(tmp_path: Path) -> None:
    with Curves(str(tmp_path)) as curves:
        curves.numbers({"loss": 0.5, "other": 1.0}, 3)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(3, 0.5)]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Curves(None) as curves:
        curves.numbers({"loss": 0.5}, 3)
    assert list(tmp_path.rglob("*")) == []


def test_a_full_disk_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {f"loss/{number}": 0.5 for number in range(200)}
    with limited(2000), pytest.raises(CurvesError) as error, Curves(str(tmp_path)) as curves:
        curves.numbers(values, 1)
    assert str(error.value).startswith(f"{tmp_path}: curves can't be written (File too large); make room")
    assert "Traceback" not in capsys.readouterr().err
