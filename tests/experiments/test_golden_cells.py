import json

import pytest

from experiments.golden import RECORD, compare
from experiments.golden_cells import Cells, compute

RECORDED: Cells = json.loads(RECORD.read_text())


@pytest.mark.parametrize("group", ["plans/MLP", "torch/tied language model", "replicas/MLP", "pipeline_steps/waiting"])
def test_numbers_are_near_those_of_the_record(group: str) -> None:
    cells = compute(group)
    recorded = {cell: numbers for cell, numbers in RECORDED.items() if cell.startswith(f"{group}/")}
    assert cells is not None
    assert len(cells) >= 4
    assert compare(cells, recorded)[2] == []
