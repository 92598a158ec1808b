import subprocess
import sys

import pytest

PLACES = """
import sys

from numba.core.dispatcher import Dispatcher

from placeto.placers import load_placer, resolve_graph, warm_up
from placeto.problem.cluster_files import load_cluster
from placeto.problem.problem import PlacementProblem

placer, cluster = load_placer(sys.argv[1]), load_cluster("4xv100")
problem = PlacementProblem(resolve_graph("llama:test:0")[1], cluster)
own, late = Dispatcher.compile, []


def noted(kernel, signature):
    late.append(kernel.py_func.__name__)
    return own(kernel, signature)


warm_up(placer, cluster, None, 1.0)
Dispatcher.compile = noted
placer(problem, seconds=1.0)
placer(problem, simulations=300)
print(*late)
"""


@pytest.mark.parametrize("name", ["placeto", "multilevel", "heft"])
def test_a_placer_made_ready_compiles_nothing_more(name: str) -> None:
    """On a graph for which kernels are needed that a tiny one needs not: else its first seconds would go to them."""
    done = subprocess.run([sys.executable, "-c", PLACES, name], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
