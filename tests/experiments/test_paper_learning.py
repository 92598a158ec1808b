from pathlib import Path

import pytest

from experiments.paper_learning import PaperLearningConfig, main, plan
from placeto.training.config import TraversalLearningConfig


def test_runs_are_of_the_training_graphs_and_disjoint_from_the_test_graphs() -> None:
    cells = plan(PaperLearningConfig(seeds=2))
    named = [(cell.family, cell.cluster) for cell in cells]
    assert named[:4] == [("nmt", "4xv100"), ("ptb", "4xv100"), ("cifar10", "4xv100"), ("nmt", "4xk80")]
    assert [len(cell.trained) for cell in cells] == [2, 1, 1, 1, 1, 1]
    runs = [run for cell in cells for run in (*cell.trained, *cell.own)]
    assert len({run.config.out for run in runs}) == len(runs)
    for cell in cells:
        for run in cell.trained:
            assert not set(run.graphs) & set(run.validation)
            assert not {*run.graphs, *run.validation} & set(cell.graphs)
        assert [run.graphs for run in cell.own] == [cell.graphs[:1]]


@pytest.mark.slow
def test_one_command_makes_table_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small_family: None
) -> None:
    config = PaperLearningConfig(
        out=tmp_path,
        families=("small",),
        clusters=("2xv100",),
        steps=2,
        own_steps=1,
        seeds=2,
        count=1,
        learning=TraversalLearningConfig(episodes=2),
        processes=1,
    )
    main(config)
    printed = capsys.readouterr().out
    (line,) = (line for line in printed.splitlines() if line.startswith("| small, 2xv100 | "))
    assert 0.3 < float(line.split(" | ")[1].split(" ")[0]) < 3.0  # of one device, after a blink of training
    assert (tmp_path / "paper_learning.png").stat().st_size > 10_000
    assert printed in (tmp_path / "paper_learning.md").read_text() + "\n"
