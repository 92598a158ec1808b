"""The checkpoint that comes with the package."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import placeto
from placeto.evaluation.comparison import parse_spec
from placeto.heuristics.local_search.starts import best_cheap
from placeto.placers import choose_placer, load_placer, pretrained_path
from placeto.policies.guided_search import GuidedPlacer
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.training.checkpoint import checkpoint_path, load_checkpoint
from tests.toys import random_graph

FOLDER = Path(placeto.__file__).parent / "pretrained"


def test_it_is_small_and_holds_what_placing_and_fine_tuning_need():
    assert (FOLDER / "placeto.safetensors").stat().st_size <= 3e6
    saved = load_checkpoint("pretrained")
    assert set(saved) == {"format", "placer", "config", "best_parameters"}
    assert saved["config"]["out"] == ""


def test_its_name_stands_for_it():
    assert pretrained_path("placeto") == FOLDER / "placeto.safetensors" == checkpoint_path("pretrained")
    assert pretrained_path("gdp") is None
    assert pretrained_path("anneal") is None
    assert choose_placer(None, None)[0] == "placeto"
    by_name, by_path = load_placer("placeto"), load_placer(FOLDER / "placeto.safetensors")
    assert isinstance(by_name, GuidedPlacer)
    assert (by_name.env, by_name.search) == (by_path.env, by_path.search)
    ours, theirs = by_name.policy.parameters, by_path.policy.parameters
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    spec = parse_spec("placeto@pass", None, 100, None)
    assert hashlib.sha256((FOLDER / "placeto.safetensors").read_bytes()).hexdigest() in spec.fingerprint


def test_it_places_without_torch():
    """Which takes seconds to import."""
    script = """
import sys
from placeto.placers import load_placer
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
ops = [{"name": str(i), "time_us": {"*": 9.0}, "outputs": [9], "inputs": [[str(i - 1), 0]] if i % 5 else []}
       for i in range(40)]
problem = PlacementProblem(ComputationGraph.from_ops("chains", ops), load_cluster("4xv100"))
assert load_placer("placeto")(problem, simulations=150).makespan_us < problem.single_device_us
assert not {"torch", "torch_geometric"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_run_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pretrained").mkdir()
    assert checkpoint_path("pretrained") == Path("pretrained/checkpoint.pt")


@pytest.mark.parametrize("cluster", ["2xk80", "2xv100+2xp100", "8xh100", "2x8xh100", "cpu+1xh100"])
def test_it_places_on_any_cluster_and_never_worse_than_the_best_cheap_heuristic(cluster):
    placer = load_placer("placeto")
    problem = PlacementProblem(random_graph(3, 60), load_cluster(cluster))
    evaluator = Evaluator(problem)
    best_cheap(evaluator)
    result = placer(problem, simulations=150, seed=0)
    assert result.makespan_us <= evaluator.best_score
    assert result.makespan_us == result.schedule().makespan_us
    assert result.simulations <= 150
    assert np.isin(result.placement, np.arange(problem.num_devices)).all()


def test_its_card_is_about_this_file():
    card = (FOLDER / "MODEL_CARD.md").read_text()
    assert hashlib.sha256((FOLDER / "placeto.safetensors").read_bytes()).hexdigest() in card
