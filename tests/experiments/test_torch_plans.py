"""The plans of the experiment are what they are called; `tests/formats/test_torch_run.py` runs one."""

from functools import cache

import pytest

from experiments.torch_plans import CASES, Case, captured_case, placed
from placeto.formats.exports import torch_pipeline
from placeto.problem.graph import ComputationGraph


@cache
def graph_of(model: str, micro_batches: int) -> ComputationGraph:
    return captured_case(Case((), "", micro_batches, model))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_exported_as_it_was_made(name: str) -> None:
    case = CASES[name]
    made = torch_pipeline(placed(case, graph_of(case.model, case.micro_batches)))
    assert made.order.plan.devices == case.devices
    assert made.num_ranks == len({device for stage in case.devices for device in stage})
