import os
import subprocess
import sys

import numpy as np
import pytest

from placeto.heuristics import HEURISTICS
from placeto.placers import load_family
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem


def test_metis_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Eight parts of one of these graphs make METIS complain of empty ones."""
    family = load_family("nmt")
    for index in range(4):
        problem = PlacementProblem(family.load("validation", index), load_cluster("8xv100"))
        assert len(np.unique(HEURISTICS["metis"](problem).placement)) > 1
    print("heard")
    assert capfd.readouterr() == ("heard\n", "")


WRITES = """
import ctypes
from placeto.heuristics.partition import _silence
libc = ctypes.CDLL(None)
libc.printf(b"kept back, ")
with _silence():
    libc.printf(b"unheard, ")
libc.printf(b"heard")
libc.fflush(None)
"""


def test_only_what_metis_writes_is_kept_from_the_terminal() -> None:
    """C keeps output back until there is enough of it, unless Python is told not to buffer."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", WRITES], env=environment, capture_output=True, check=True)
    assert done.stdout == b"kept back, heard"


NO_OUTPUT = """
import os, sys
from placeto.heuristics.partition import _silence
sys.stdout = None
with _silence():
    pass
os.close(1)
with _silence():
    print("well", file=sys.stderr)
try:
    os.fstat(1)
except OSError:
    print("closed as before", file=sys.stderr)
"""


def test_there_need_not_be_a_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", NO_OUTPUT], capture_output=True, check=True)
    assert done.stderr == b"well\nclosed as before\n"


def test_metis_places_a_single_group_where_it_is_fastest() -> None:
    graph = ComputationGraph.from_ops("one", [{"name": "a", "flops": 1e12}])
    result = HEURISTICS["metis"](PlacementProblem(graph, load_cluster("cpu+1xh100")))
    assert result.placement.tolist() == [1]
