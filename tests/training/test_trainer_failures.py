"""What stops a training run, and what is left of it."""

import numpy as np
import pytest
import torch

from placeto.errors import PlacetoError, TrainingError
from placeto.training.checkpoint import load_checkpoint, save_checkpoint
from placeto.training.trainer import _finite, train
from tests.problem.test_files import held, limited
from tests.training.test_trainer import config, problems, state_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished")
    train(config(out, iterations=1), problems(3), problems(2, 10))
    return out


def test_a_second_run_in_one_directory_is_refused(tmp_path):
    with held(tmp_path) as process, pytest.raises(PlacetoError, match=f"process {process.pid} on .* is writing to it"):
        train(config(tmp_path), problems(2), problems(1, 10))
    train(config(tmp_path, iterations=1), problems(2), problems(1, 10))
    assert not (tmp_path / ".lock").exists()


def test_a_full_disk_keeps_the_last_checkpoint_and_says_how_to_go_on(tmp_path):
    with limited(100_000), pytest.raises(TrainingError, match=r"\(File too large\); make room, train anew"):
        train(config(tmp_path, iterations=1), problems(2), problems(1, 10))
    train(config(tmp_path, iterations=1), problems(2), problems(1, 10))
    with limited(100_000), pytest.raises(TrainingError) as error:
        train(config(tmp_path, iterations=2), problems(2), problems(1, 10), resume=True)
    path = tmp_path / "checkpoint.pt"
    says = f"{path}: can't be written (File too large); the last one stays: make room, then go on with --resume"
    assert str(error.value) == says
    assert load_checkpoint(tmp_path)["iteration"] == 1
    train(config(tmp_path, iterations=2), problems(2), problems(1, 10), resume=True)
    assert load_checkpoint(tmp_path)["iteration"] == 2


def test_numbers_that_are_not_finite_stop_the_run(finished, tmp_path):
    initial = load_checkpoint(finished)
    for value in initial["best_parameters"].values():
        value *= 1e30
    with pytest.raises(
        TrainingError,
        match="stopped in iteration 1: the policy's answers are not finite; nothing was saved yet: train anew with a",
    ):
        train(config(tmp_path), problems(2), problems(1, 10), initial=initial)
    policy = torch.nn.Linear(1, 1)
    with (
        pytest.raises(
            TrainingError, match=r"the parameters are not finite; .*checkpoint\.pt keeps the last good state"
        ),
        _finite(config(finished), state_of(policy)),
    ):
        torch.nn.init.constant_(policy.weight, np.inf)


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: saved.pop("random"),
        lambda saved: saved.pop("placer"),
        lambda saved: saved.update(elite=3),
        lambda saved: saved["random"].update(torch=torch.zeros(3)),
        lambda saved: saved["optimizer"].update(state=[]),
        lambda saved: saved["parameters"].popitem(),
        lambda saved: saved.update(elite=saved["elite"][:, :-1]),
        lambda saved: saved.update(elite=saved["elite"] + 2),
        lambda saved: saved.update(elite=saved["elite"].float()),
        lambda saved: saved.update(elite_score=saved["elite_score"].float()),
        lambda saved: saved.update(average={"weight": torch.zeros(1)}),
        lambda saved: saved.update(best_validation=[]),
        lambda saved: saved["optimizer"]["state"][0].update(exp_avg=torch.zeros(2)),
        lambda saved: saved["optimizer"]["state"][0].pop("step"),
        lambda saved: saved["random"]["generators"][1].update(state={"array": ["x"], "dtype": "U1000000000"}),
    ],
    ids=range(15),
)
def test_a_checkpoint_with_something_of_another_kind_is_not_resumed(finished, tmp_path, change):
    saved = load_checkpoint(finished)
    change(saved)
    save_checkpoint(saved, tmp_path / "checkpoint.pt")
    with pytest.raises(TrainingError, match=r"doesn't match this version of Placeto \(.+\)"):
        train(config(tmp_path), problems(3), problems(2, 10), resume=True)
