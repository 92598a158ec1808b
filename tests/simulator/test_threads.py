import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os
os.environ["NUMBA_NUM_THREADS"] = "3"
import numpy as np
import torch
import placeto
from placeto.policies.one_shot.gdp import GdpConfig, GdpPolicy
from placeto.policies.one_shot.sampling import SamplingPlacer
from placeto.policies.placeto_paper import PlacetoPaperConfig, PlacetoPaperPolicy
from placeto.policies.sweeps import Sweeper
from placeto.policies.traversal import TraversalPlacer
from placeto.simulator.schedule import simulate_batch
from placeto.simulator.threads import set_threads
from tests.cases import toy_problem

problem = toy_problem(2, 30, 3)
if os.fork() == 0:
    torch.set_num_threads(1)
    for name in "single", "etf":
        placeto.load_placer(name)(problem, simulations=40)
        assert torch.get_num_threads() == 1, name
    os._exit(0)
assert os.wait()[1] == 0
seen = []

def watch(owner, name):
    method = getattr(owner, name)
    def watched(*arguments):
        simulate_batch(problem, np.zeros((16, 30), np.int64))
        seen.append(torch.get_num_threads())
        return method(*arguments)
    setattr(owner, name, watched)

watch(Sweeper, "_logits")
watch(GdpPolicy, "sample")
watch(TraversalPlacer, "_traverse")
torch.set_num_threads(2)
paper = TraversalPlacer(PlacetoPaperPolicy(PlacetoPaperConfig()))
for place in placeto.load_placer("placeto"), SamplingPlacer(GdpPolicy(GdpConfig())), paper:
    place(problem, simulations=100)
    assert seen and set(seen) == {1}, seen
    assert torch.get_num_threads() == 2
    seen.clear()
    try:
        place(problem, simulations=-1)
    except ValueError:
        assert torch.get_num_threads() == 2
    else:
        raise AssertionError("a negative budget")
set_threads(3, 99)
assert torch.get_num_threads() == 3
"""


@pytest.mark.slow
def test_learned_placers_have_one_thread_from_their_first_call_on_and_others_leave_torch_those_that_it_has() -> None:
    """In processes of their own, with more threads than those of the tests."""
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, check=True)
