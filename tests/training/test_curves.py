import errno
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from placeto.errors import TrainingError
from placeto.training.curves import BY_PLACEMENTS, OF_PLACEMENTS, Curves
from placeto.training.tags import of_graph
from tests.problem.test_files import limited


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), {"histograms": 0})  # all of them
    events.Reload()
    return events


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_numbers_are_read_again_at_steps_and_at_placements(tmp_path: Path) -> None:
    with Curves(str(tmp_path), by_placements=True) as curves:
        curves.numbers({"loss/policy": 0.5, "return/mean": 1.0}, 3, 250)
        curves.distribution("validation/end_distribution", np.array([0.25, 0.5, 0.75]), 3)
    assert points(tmp_path, "loss/policy") == [(3, 0.5)]
    assert points(tmp_path / BY_PLACEMENTS, f"{OF_PLACEMENTS}loss/policy") == [(250, 0.5)]
    histogram = read(tmp_path).Histograms("validation/end_distribution")[0].histogram_value
    assert (histogram.min, histogram.max, histogram.num) == (0.25, 0.75, 3)


def test_settings_are_in_the_same_file_as_the_curves(tmp_path: Path) -> None:
    """From a file of their own they were read first if its name said so, and hidden by the curves' smaller steps."""
    with Curves(str(tmp_path)) as curves:
        curves.numbers({"loss/policy": 0.5}, 1)
        curves.settings({"lr": 0.1}, {"hparam/validation": 0.75}, 2)
    assert len(list(tmp_path.glob("events*"))) == 1
    assert points(tmp_path, "hparam/validation") == [(2, 0.75)]
    assert "hparams" in read(tmp_path).summary_metadata["_hparams_/experiment"].plugin_data.plugin_name


@pytest.mark.parametrize("ahead", [False, True], ids=["same second", "clock set back"])
def test_points_beyond_the_checkpoint_are_hidden_when_a_run_goes_on(tmp_path: Path, ahead: bool) -> None:
    tags = "makespan/best", of_graph("a")
    with Curves(str(tmp_path), by_placements=True) as curves:
        for step in range(1, 6):
            curves.numbers(dict.fromkeys(tags, 0.5), step, 10 * step)
            curves.distribution("validation/end_distribution", np.full(2, 0.5), step)
    if ahead:  # by ten digits, as the clock of another machine
        for file in tmp_path.rglob("events*"):
            file.rename(file.with_name(file.name.replace("tfevents.1", "tfevents.9")))
    with Curves(str(tmp_path), by_placements=True, resumed=(3, 30)) as curves:
        for step in (4, 5):
            curves.numbers(dict.fromkeys(tags, 0.25), step, 11 * step)
            curves.distribution("validation/end_distribution", np.full(2, 0.25), step)
    values = [0.5, 0.5, 0.5, 0.25, 0.25]
    for tag in tags:
        assert points(tmp_path, tag) == list(zip([1, 2, 3, 4, 5], values, strict=True))
        assert points(tmp_path / BY_PLACEMENTS, OF_PLACEMENTS + tag) == list(
            zip([10, 20, 30, 44, 55], values, strict=True)
        )
    shown = read(tmp_path).Histograms("validation/end_distribution")
    assert [(event.step, event.histogram_value.max) for event in shown] == list(zip(range(1, 6), values, strict=True))


def test_a_run_that_begins_hides_what_one_left_that_ended_before_its_first_checkpoint(tmp_path: Path) -> None:
    for value in (0.5, 0.25):
        with Curves(str(tmp_path), by_placements=True) as curves:
            curves.numbers({"loss/policy": value}, 1, 10)
    assert points(tmp_path, "loss/policy") == [(1, 0.25)]
    assert points(tmp_path / BY_PLACEMENTS, f"{OF_PLACEMENTS}loss/policy") == [(10, 0.25)]


def test_a_full_disk_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {of_graph(str(number)): 0.5 for number in range(200)}
    with limited(2000), pytest.raises(TrainingError) as error, Curves(str(tmp_path)) as curves:
        curves.numbers(values, 1)
    said = f"{tmp_path}: curves can't be written (File too large); make room: "
    assert str(error.value) == f"{said}nothing was saved yet, train anew"
    (tmp_path / "checkpoint.pt").touch()
    with limited(2000), pytest.raises(TrainingError) as error, Curves(str(tmp_path)) as curves:
        curves.numbers(values, 1)
    assert str(error.value) == f"{said}--resume goes on from the last checkpoint"
    assert "Traceback" not in capsys.readouterr().err


def test_a_disk_that_is_full_from_the_beginning_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tensorboard's thread writes before the first number does."""

    def write_later(curves: Curves) -> None:
        time.sleep(0.5)
        curves.numbers({"loss/policy": 0.5}, 1)

    with limited(0):
        written = Curves(str(tmp_path), by_placements=True)
        time.sleep(0.5)
        with pytest.raises(TrainingError, match="make room"), written as curves:
            write_later(curves)
    assert "Traceback" not in capsys.readouterr().err


def test_a_folder_that_is_only_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("placeto.training.curves.SummaryWriter", refuse)
    expected = r"\(Read-only file system\); make the folder writable"
    with pytest.raises(TrainingError, match=expected), Curves(str(tmp_path)):
        pass
