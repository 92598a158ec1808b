"""The plans of the experiment are exported as they were made; torchtitan and Megatron-LM aren't needed for that."""

import pytest

from experiments.other_tools import PLANS, placed
from placeto.formats.exports.torchtitan import torchtitan


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_exported_as_it_was_made(name: str) -> None:
    devices, micro_batches = PLANS[name]
    made = torchtitan(placed(devices, micro_batches))
    assert not made.renamed
    assert made.layers.moved < 0.1
    assert made.layers.plan.goes_back == (name == "and back")
    assert len(made.modules) == len(devices)
    assert len(made.ranks) == len({device for stage in devices for device in stage})
    assert made.layers.plan.num_micro_batches == micro_batches
