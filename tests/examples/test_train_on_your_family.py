"""The example trains on its family, and compares the policy on graphs that are not among those of the training."""

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_on_your_family.py"


def test_it_trains_and_compares_on_unseen_graphs(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLE))
    table = example["main"](tmp_path / "run", 2, None, 1, 0.0)
    rows = {cells[1].strip(): float(cells[2]) for line in table.splitlines()[2:] for cells in [line.split("|")]}
    assert set(rows) == {"trained", "untrained", "trained, one pass", "untrained, one pass", "multilevel", "etf"}
    assert rows["trained"] <= rows["etf"] < 1.0  # the search begins with the heuristics
    assert list((tmp_path / "run").glob("events.out.tfevents*"))
    trained_on, unseen = (example["graph"]("towers", seed).hash for seed in (0, 2000))
    assert trained_on != unseen
