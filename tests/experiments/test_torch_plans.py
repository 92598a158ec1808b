"""The plans of the experiment are what they are called; `tests/formats/test_torch_run.py` runs one."""

import pytest

from experiments.torch_plans import CASES, captured_case, placed
from placeto.formats.exports import torch_pipeline


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_exported_as_it_was_made(name: str) -> None:
    case = CASES[name]
    made = torch_pipeline(placed(case, captured_case(case)))
    assert made.order.plan.devices == case.devices
    assert made.num_ranks == len({device for stage in case.devices for device in stage})
