import subprocess
import sys

import pytest

PLACES = """
import sys

from numba.core.dispatcher import Dispatcher

from placeto.placers import load_placer, resolve_graph
from placeto.problem.cluster_files import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

placer, cluster = load_placer(sys.argv[1]), load_cluster("4xv100")
problem = PlacementProblem(resolve_graph("llama:test:0")[1], cluster)
compile, begin, late, begun = Dispatcher.compile, Evaluator.__init__, [], []


def noted(kernel, signature):
    late.extend([kernel.py_func.__name__] if begun else [])
    return compile(kernel, signature)


def begins(evaluator, of, *arguments):
    begun.extend([True] if of is problem else [])
    begin(evaluator, of, *arguments)


Dispatcher.compile, Evaluator.__init__ = noted, begins
placer(problem, seconds=1.0)
placer(problem, simulations=300)
print(*late)
"""


@pytest.mark.parametrize("name", ["placeto", "multilevel", "heft"])
def test_nothing_is_compiled_once_the_clock_has_started(name: str) -> None:
    """Nor loaded, on a graph for which kernels are needed that a tiny one needs not: the first seconds are for work."""
    done = subprocess.run([sys.executable, "-c", PLACES, name], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
