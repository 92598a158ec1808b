import subprocess
import sys

import numpy as np
import pytest

from placeto.errors import PlanError
from placeto.placers import load_placer, resolve_graph
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.whole_modules import whole_modules
from placeto.simulator.schedule import simulate
from tests.toys import fork_of_chains

PLACES = """
import os
import sys

from numba.core.dispatcher import Dispatcher

from placeto.placers import load_placer, resolve_graph
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

compile, begin, late, begun = Dispatcher.compile, Evaluator.__init__, [], []


def noted(kernel, signature):
    late.extend([kernel.py_func.__name__] if begun else [])
    return compile(kernel, signature)


def begins(evaluator, of, *arguments):
    begun.extend([True] if of is problem else [])
    begin(evaluator, of, *arguments)


problem = PlacementProblem(resolve_graph("llama:test:0")[1], load_cluster("4xv100"))
Dispatcher.compile, Evaluator.__init__ = noted, begins
for name in sys.argv[1:]:
    if os.fork() == 0:  # each of them has loaded no kernel
        placer = load_placer(name)
        placer(problem, seconds=1.0)
        placer(problem, simulations=100)
        print(name, *late)
        break
    os.wait()
"""


@pytest.mark.slow
def test_nothing_is_compiled_once_the_clock_has_started() -> None:
    """Nor loaded, on a graph for which kernels are needed that a tiny one needs not: the first seconds are for work."""
    names = ["placeto", "multilevel"]
    done = subprocess.run([sys.executable, "-c", PLACES, *names], capture_output=True, text=True, check=True)
    assert done.stdout.split() == names


def test_placers_keep_modules_whole_where_asked() -> None:
    graph = resolve_graph("ptb:test:0")[1]
    problem = PlacementProblem(graph, load_cluster("4xv100"))
    unit = whole_modules(graph).colocation
    for name in ("random", "etf", "multilevel", "placeto"):
        result = load_placer(name, whole_modules=True)(problem, simulations=60)
        assert result.problem is problem
        assert all(len(set(result.placement[unit == one])) == 1 for one in np.unique(unit[unit >= 0]))
        assert simulate(problem, result.placement, order=result.order).makespan_us == result.makespan_us
    free = load_placer("etf")(problem)
    assert any(len(set(free.placement[unit == one])) > 1 for one in np.unique(unit[unit >= 0]))


def test_whole_modules_of_a_graph_without_modules_are_refused() -> None:
    with pytest.raises(PlanError, match="module"):
        load_placer("etf", whole_modules=True)(fork_of_chains(2, 2))
