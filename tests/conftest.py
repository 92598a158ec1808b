"""One thread and one seed for all tests, and what tests of several files are given.

Tensors here are small, and two threads that wait for each other on a busy machine take minutes.
"""

import gc
from pathlib import Path

import pytest
import torch

from placeto.plumbing.compiling import LISTENER
from placeto.problem.graph import ComputationGraph, save_graph
from placeto.simulator.threads import set_threads
from tests.command_line import NET, OPS
from tests.packages import adds, small_family  # noqa: F401 - fixtures

set_threads(1, 1)
LISTENER.told = True  # no test hears that kernels are compiled: that depends on what ran before
gc.set_threshold(20_000, 20, 100)  # else looking for garbage takes a tenth of the time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First comes what compiles most kernels, then what needs none: so few are compiled by both processes."""
    none = "graphs/test_graphs_", "capture/test_zoo", "formats/test_torch_replicas", "capture/test_loss_reductions"
    none += "runtime/test_torchrun", "problem/test_json_files", "capture/test_sharded_module"
    first = "tests/test_frozen.py", *(f"tests/{name}" for name in none), ""
    items.sort(key=lambda item: next(place for place, path in enumerate(first) if item.nodeid.startswith(path)))


def pytest_collection_finish() -> None:
    """What is imported lives to the end: Python need not look through it each time that it collects garbage."""
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws torch's random numbers from seed 0."""
    torch.manual_seed(0)


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    """File of a graph of four ops, two of which can run at the same time."""
    save_graph(ComputationGraph.from_ops("fork", OPS), tmp_path / "fork.json")
    return str(tmp_path / "fork.json")


@pytest.fixture
def net_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has a file net.py, whose function net makes a module of linear layers for training."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
