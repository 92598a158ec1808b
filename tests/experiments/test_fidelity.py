"""The experiment on simulated and measured steps, small."""

from pathlib import Path

import numpy as np
import pytest

from experiments import fidelity
from experiments.fidelity import Fidelity, placements
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from tests.toys import random_graph


def test_placements_are_distinct() -> None:
    problem = PlacementProblem(random_graph(1, 60), load_cluster("2xcpu-core"))
    found = placements(problem, 25, 0)
    assert len({result.placement.tobytes() for result in found}) == 25
    assert len(np.unique(found[0].placement)) == 1
    assert all(result.makespan_us == result.schedule().makespan_us for result in found)


@pytest.mark.slow
def test_the_table_and_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fidelity.main(Fidelity(tmp_path, placements=10, seconds=0.1, profile_seconds=0.1, models=("MLP",)))
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| MLP"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "10"
    order, order_of_itself = float(cells[3]), float(cells[8])  # on a busy machine the latter may be below 0
    assert -1.0 <= order <= 1.0
    assert -1.0 <= order_of_itself <= 1.0
    assert all(float(cell) > 0 for cell in cells[9:])
    assert (tmp_path / "fidelity.png").stat().st_size > 5_000
