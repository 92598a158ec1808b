"""The example writes its graph, the rows and a picture; no placer is better than the bound."""

import runpy
from pathlib import Path

import placeto

EXAMPLE = Path(__file__).parents[2] / "examples" / "compare_on_your_graph.py"


def test_all_placers_are_compared(tmp_path: Path) -> None:
    table = runpy.run_path(str(EXAMPLE))["main"](5, 5, 40, 1, tmp_path)
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:]]
    assert {row[1] for row in rows} == {"single", "metis", "heft", "etf", "anneal", "multilevel", "placeto"}
    assert all(float(row[4]) >= 1.0 for row in rows)  # of the lower bound
    assert placeto.load_graph(tmp_path / "grid.json").num_ops == 25
    assert (tmp_path / "curves.png").stat().st_size > 1000
