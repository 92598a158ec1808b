"""Packages that add policies, rewards and families: those of docs/extending.md as they stand there, and wrong ones."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from placeto.environment import rewards
from placeto.errors import GraphError, PlacerError, TrainingError
from placeto.placers import load_family, load_placer, load_split, placer_names, resolve_graph
from placeto.plumbing.extensions import load_extension
from placeto.policies.guided_search import GuidedPlacer
from placeto.policies.one_shot.sampling import SamplingPlacer
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import check_config, default_config
from tests.command_line import fails, run
from tests.packages import forget
from tests.toys import random_graph, toy_cluster

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
PACKAGES = "halves", "pairwise", "log_drop", "twins"
BUILD = """
import os
import sys

from setuptools.build_meta import build_wheel

target, *packages = sys.argv[1:]
for package in packages:
    os.chdir(package)
    build_wheel(target)
    os.chdir("..")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the packages of the page are installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    blocks = re.findall(r"^```(?:toml|python)\n# ([\w/.]+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert {Path(name).parent.name for name, _ in blocks} == set(PACKAGES)
    for name, text in blocks:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    subprocess.run([sys.executable, "-c", BUILD, str(target), *PACKAGES], cwd=source, check=True, capture_output=True)
    for wheel in target.glob("*.whl"):
        ZipFile(wheel).extractall(target)
    return target


@pytest.fixture
def extended(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it the packages of the page are there."""
    monkeypatch.setenv("PLACETO_CACHE", str(installed / "cache"))
    monkeypatch.syspath_prepend(str(installed))
    forget()
    yield
    forget()


@pytest.mark.usefixtures("extended")
def test_what_packages_add_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for what in ("placers", "rewards", "placement-rewards", "families"):
        assert run("list", what) == 0
    listed = capsys.readouterr().out
    assert re.search("^pairwise +Looks at each group", listed, re.MULTILINE)
    assert re.search("^solo +Places each group", listed, re.MULTILINE)
    assert re.search("^halves +The first half of the groups on", listed, re.MULTILINE)
    assert re.search("^log-drop +Drop of the logarithm", listed, re.MULTILINE)
    assert re.search("^speed +How many steps are made", listed, re.MULTILINE)
    assert re.search("^twins +two towers of dense layers$", listed, re.MULTILINE)


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize(("placer", "kind"), [("pairwise", GuidedPlacer), ("solo", SamplingPlacer)])
def test_policies_of_packages_train_on_a_familys_graphs_place_and_are_evaluated(
    placer: str, kind: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, on = tmp_path / "run", ("--cluster", "2xv100")
    small = ["--iterations", "2", "--learning.graphs", "2", "--policy.hidden", "8"]
    if placer == "pairwise":
        small += ["--learning.reward", "log-drop", "--learning.replicas", "2", "--learning.moves", "3"]
    else:
        small += ["--learning.reward", "speed"]
    assert run("train", "--family", "twins", *on, "--placer", placer, "--out", out, *small) == 0
    checkpoint = load_checkpoint(out)
    assert checkpoint["config"]["policy"]["hidden"] == 8
    assert run("train", "--family", "twins", *on, "--placer", placer, "--out", out, *small, "--resume") == 0
    assert run("train", "twins:test:1", *on, "--checkpoint", out, "--out", tmp_path / "tuned", *small[:4]) == 0
    capsys.readouterr()
    assert run("place", "twins:test:0", *on, "--checkpoint", out, "--simulations", "50") == 0
    assert f"placer       {placer}: " in capsys.readouterr().out
    options = ("--checkpoint", out, "--placers", f"{placer},etf", "--simulations", "50", "--processes", "1")
    assert run("evaluate", "twins:test:0", *on, *options) == 0
    assert f"| {placer} " in capsys.readouterr().out
    assert isinstance(load_placer(out), kind)
    problem = PlacementProblem(random_graph(0, 20), toy_cluster(2))
    result = load_placer(out)(problem, simulations=60)
    assert (result.placer, result.simulations) == (placer, 60)
    assert simulate(problem, result.placement).makespan_us == result.makespan_us
    assert "is learned: give a checkpoint" in fails(capsys, "place", "twins:test:0", *on, "--placer", placer)


@pytest.mark.usefixtures("extended")
def test_heuristics_of_packages_place_and_are_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    on = "cifar10:test:0", "--cluster", "2xv100"
    assert run("place", *on, "--placer", "halves") == 0
    assert "placer       halves: " in capsys.readouterr().out
    assert run("evaluate", *on, "--placers", "halves,etf", "--simulations", "10", "--processes", "1") == 0
    assert "| halves " in capsys.readouterr().out
    assert "only learned placers have a pass" in fails(capsys, "evaluate", *on, "--placers", "halves@pass")


@pytest.mark.usefixtures("extended")
def test_a_checkpoint_whose_package_is_gone_is_refused(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, on = tmp_path / "run", ("--cluster", "2xv100")
    assert run("train", "--family", "twins", *on, "--placer", "solo", "--out", out, "--iterations", "1") == 0
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(installed)])
    forget()
    capsys.readouterr()
    for command in (("place", "ptb:test:0"), ("train", "ptb:test:0", "--out", tmp_path / "other")):
        says = fails(capsys, *command, *on, "--checkpoint", out)
        assert "holds the placer 'solo': no installed package has a learned placer 'solo'; there are placeto, " in says
        assert says.endswith("; install the package that it was trained with\n")
    with pytest.raises(TrainingError, match="install the package"):
        load_placer(out)


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize(
    ("learning", "says"),
    [
        ({"reinforcement": 0.5}, r"learning\.reinforcement must be 1 for pairwise, which predicts no effects"),
        ({"reward": "lucky"}, r"learning\.reward must be .* or log-drop, not 'lucky'"),
        ({"reward": "speed"}, r"learning\.reward must be .* or log-drop, not 'speed'"),
    ],
)
def test_settings_that_dont_fit_are_refused(learning: dict[str, object], says: str) -> None:
    config = default_config("pairwise", "runs/x")
    check_config(replace(config, learning=replace(config.learning, reward="log-drop")))
    with pytest.raises(TrainingError, match=says):
        check_config(replace(config, learning=replace(config.learning, **learning)))


FAMILY = """
from placeto.problem.graph import ComputationGraph
class Family:
    name, description, splits = "mine", "graphs", {"train": 2}
    def load(self, split, index): return ComputationGraph.from_ops("g", [{"name": "a"}] * 2) if index else None
F = {"mine": Family()}
"""
READS: dict[str, Callable[[], object]] = {
    "placers": lambda: load_placer("mine")(PlacementProblem(random_graph(0, 20), toy_cluster(2))),
    "policies": placer_names,
    "families": lambda: load_split("mine", "train"),
    "rewards": lambda: rewards.find_reward("mine")(torch.ones(3, 2)),
    "placement_rewards": lambda: rewards.find_placement_reward("mine")(np.ones((3, 2))),
}
REFUSED = {
    "placers": [
        ("etf = ours:mine", "", r"of ours: 'etf' is a name of Placeto itself, too"),
        ("mine = ours:mine", "mine = 1", r"must be a function \(problem, \*, simulations=None, .*, not 1"),
        ("mine = ours:mine", "mine = lambda problem: 1", r"must be a function \(problem, \*, simulations=None"),
        ("mine = ours:mine", "mine = lambda problem, **_: 1", "must return a PlacementResult, not 1"),
        ("mine = ours:mine", "mine = lambda problem, **_: 1 / 0", r"failed: ZeroDivisionError: .*ours\.py, line 1"),
    ],
    "policies": [
        (
            "gdp = ours:POLICY",
            "",
            r"entry point gdp = 'ours:POLICY' .* of ours: 'gdp' is a name of Placeto itself, too: rename one, or unin",
        ),
        ("mine = ours:mine", "1 / 0", r"can't be loaded: ZeroDivisionError: division by zero \(.*ours\.py, line 1\)"),
        ("mine = ours:mine", "def (", r"can't be loaded: SyntaxError: invalid syntax \(ours\.py, line 1\)"),
        ("mine = ours:mine", "exit(3)", "can't be loaded: SystemExit: 3"),
        ("mine = ours:mine:too", "", r"entry point mine = 'ours:mine:too' in .* of ours: must be module:name"),
    ],
    "families": [
        ("ours = ours:F", "F = 1", "must be a dictionary of families, not 1"),
        ("ours = ours:F", FAMILY.replace("mine", "cifar10"), "a family 'cifar10', too"),
        ("ours = ours:F", f"{FAMILY}del Family.splits", "the family 'mine' has no splits"),
        ("ours = ours:F", f"{FAMILY}F = {{3: Family()}}", "the name of a family must be text, not 3"),
        ("ours = ours:F", f"{FAMILY}F = {{'mine': Family}}", "the family 'mine' is a class, it must be an object"),
        (
            "ours = ours:F",
            f"{FAMILY}Family.splits = None",
            "must be numbers of graphs by name, such as {'train': 4, 'test'",
        ),
        (
            "ours = ours:F",
            f"{FAMILY}Family.splits = {{'train': -2}}",
            "splits of the family 'mine' must be numbers of graphs",
        ),
        ("ours = ours:F", FAMILY, "load of the family 'mine' must return a ComputationGraph, not NoneType"),
    ],
    "rewards": [
        ("mine = ours:mine", "mine = 1", "is no function, but 1"),
        ("mine = ours:mine", "mine = lambda: 1", "must take one argument, the makespans"),
        ("mine = ours:mine", "mine = lambda x: x", r"returns \(3, 2\) for makespans \(3, 2\), it must be \(2, 2\)"),
        (
            "mine = ours:mine",
            "mine = lambda x: x[1:].long()",
            r"returns numbers of type torch\.int64, it must be finite",
        ),
        ("mine = ours:mine", "mine = lambda x: x[1:] / 0", "returns numbers that are not finite"),
    ],
    "placement_rewards": [
        ("mine = ours:mine", "def mine(x):\n    return x.mean()", r"returns float64 for makespans \(3, 2\), it must be")
    ],
}


@pytest.mark.parametrize(
    ("group", "point", "code", "says"), [(group, *case) for group, cases in REFUSED.items() for case in cases]
)
def test_what_a_package_must_not_add_is_refused(
    adds: Callable[..., None], group: str, point: str, code: str, says: str
) -> None:
    adds(f"placeto.{group}", point, code)
    with pytest.raises(PlacerError, match=says) as refused:
        READS[group]()
    assert f" in placeto.{group} of " in str(refused.value)
    if group == "families" and "del" in code:
        assert load_family("cifar10").name == "cifar10"  # the others are there all the same


def test_two_packages_with_a_name_in_common_are_refused(adds: Callable[..., None]) -> None:
    adds("placeto.rewards", "mine = ours:reward")
    adds("placeto.rewards", "mine = theirs:reward", package="theirs")
    with pytest.raises(PlacerError, match=r"'mine' is a name of entry point mine = '(ours|theirs):reward'.*, too"):
        rewards.reward_names()


def test_a_graph_of_a_family_that_is_refused_is_named(adds: Callable[..., None]) -> None:
    adds("placeto.families", "ours = ours:F", FAMILY)
    with pytest.raises(GraphError, match=r"^mine:train:1: op 'a': duplicate name"):
        resolve_graph("mine:train:1")


FEW = """
from placeto.problem.graph import ComputationGraph
class Family:
    name, description, splits = "few", "graphs", {"train": 1, "test": 0}
    def load(self, split, index):
        return ComputationGraph.from_ops("g", [{"name": name, "time_us": {"*": 9.0}} for name in "abc"])
FAMILIES = {"few": Family()}
"""


def test_a_split_without_graphs_is_named(
    adds: Callable[..., None], tmp_path: Path, graph_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    adds("placeto.families", "ours = ours:FAMILIES", FEW)
    small = "--iterations", "1", "--placer", "mlp", "--learning.samples", "2"
    train = "train", "--cluster", "2xv100", "--family", "few", "--out", tmp_path / "run", *small
    says = fails(capsys, *train)
    assert says == "error: --family few: has no graphs in its split 'validation'; give --validation-graphs\n"
    says = fails(capsys, "evaluate", "--cluster", "2xv100", "--family", "few", "--placers", "etf")
    assert says == "error: few:test has no graphs: take another split, or give other graphs\n"
    assert run(*train, "--validation-graphs", graph_file) == 0


def test_control_characters_in_descriptions_are_not_printed(
    adds: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    adds("placeto.families", "ours = ours:FAMILIES", FEW.replace('"graphs"', '"\\x1b[31mred"'))
    assert run("list", "families") == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_reward_that_changes_its_makespans_changes_a_copy(adds: Callable[..., None]) -> None:
    adds("placeto.rewards", "mine = ours:reward", "def reward(x):\n    x -= 5\n    return x[1:]")
    makespans = torch.ones(3, 2)
    assert (rewards.find_reward("mine")(makespans) == -4).all()
    assert (makespans == 1).all()


def test_another_module_of_the_same_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's own graphs.py hides the families that come with the package."""
    (tmp_path / "charts.py").write_text("LINES = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PlacerError, match=r"no attribute 'FAMILIES'; charts is .*charts\.py: if that is another"):
        load_extension(EntryPoint("charts", "charts:FAMILIES", "placeto.families"))
