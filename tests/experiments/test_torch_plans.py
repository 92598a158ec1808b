"""The plans of the experiment are what they are called; `tests/formats/test_torch_run.py` runs one."""

import pytest

from experiments.torch_plans import CASES, FILE, placed
from placeto.cli.graphs import CaptureOptions, capture_factory
from placeto.formats.exports import torch_pipeline


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_exported_as_it_was_made(name: str) -> None:
    case = CASES[name]
    options = CaptureOptions(micro_batches=case.micro_batches)
    graph = capture_factory(f"{FILE}:{case.model}", options, case.model)[0]
    made = torch_pipeline(placed(case, graph))
    assert tuple(zip(*made.stages.devices, strict=True)) == case.devices
    assert made.num_ranks == len({device for stage in case.devices for device in stage})
