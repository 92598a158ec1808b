"""The experiment on steps in micro-batches runs, on a model that is small."""

import pytest

from experiments.micro_batches import MicroBatches, main
from placeto.problem.cluster import STATIC_ORDERS


def test_each_line_has_a_number_not_below_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    main(MicroBatches(clusters=("2xv100",), counts=(2,), layers=1, placers=("multilevel",), simulations=40, seeds=2))
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 2 * len(STATIC_ORDERS) + 1
    assert all(float(line[1].split(" ")[0]) >= 1.0 for line in lines[2:])
