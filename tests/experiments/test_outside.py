"""The experiments that `outside` runs are commands."""

from importlib import import_module
from pathlib import Path

from experiments.outside import EXPERIMENTS

FOLDER = Path(__file__).parents[2] / "experiments"


def test_all_comparisons_with_others_are_run_and_are_commands() -> None:
    assert len(set(EXPERIMENTS)) == len(EXPERIMENTS) >= 3
    for name in EXPERIMENTS:
        assert callable(import_module(f"experiments.{name}").main)
        assert f'"{name}", __doc__' in (FOLDER / f"{name}.py").read_text()
