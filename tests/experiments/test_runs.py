from dataclasses import replace
from pathlib import Path

from experiments.runs import Run, train_run, train_runs
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import LearningConfig, TrainConfig

GRAPH = "ptb:validation:0"
LEARNING = LearningConfig(reinforcement=1.0, graphs=1, replicas=2, moves=2)


def run(out: Path, iterations: int = 2) -> Run:
    return Run(TrainConfig(str(out), iterations=iterations, learning=LEARNING), "2xv100", (GRAPH,))


def test_a_run_is_done_once_and_again_with_other_settings(tmp_path: Path) -> None:
    first = run(tmp_path / "a")
    assert not first.finished
    train_runs([first], 1)
    assert first.finished
    checkpoint = tmp_path / "a" / "checkpoint.pt"
    written = checkpoint.stat().st_mtime_ns
    train_runs([first], 1)
    assert checkpoint.stat().st_mtime_ns == written
    longer = run(tmp_path / "a", 3)
    assert longer.outdated
    assert not longer.finished
    train_run(longer)
    assert longer.finished
    assert load_checkpoint(checkpoint)["iteration"] == 3
    assert replace(longer, config=replace(longer.config, seed=1)).outdated
    assert replace(longer, cluster="4xv100").outdated
    assert replace(longer, graphs=("ptb:validation:1",)).outdated
