"""Packages that add policies, rewards and families: those of docs/extending.md as they stand there, and wrong ones."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch

from placeto.environment import rewards
from placeto.extensions import ExtensionError, load_extension
from placeto.placers import families, load_family, load_placer, load_split, placer_names, resolve_graph
from placeto.policies.episodic import EpisodePlacer
from placeto.policies.one_shot.sampling import SamplingPlacer
from placeto.problem.graph import GraphError
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from placeto.training.checkpoint import CheckpointError, load_checkpoint
from placeto.training.config import ConfigError, check_config, default_config
from tests.command_line import fails, run
from tests.packages import forget
from tests.toys import random_graph, toy_cluster

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
PACKAGES = "pairwise", "log_drop", "twins"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the packages of the page are installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    blocks = re.findall(r"^```(?:toml|python)\n# ([\w/.]+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert {Path(name).parent.name for name, _ in blocks} == set(PACKAGES)
    for name, text in blocks:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    options = "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index"
    given = [str(source / name) for name in PACKAGES]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", str(target), *given], check=True)
    return target


@pytest.fixture
def extended(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it the packages of the page are there."""
    monkeypatch.setenv("PLACETO_CACHE", str(installed / "cache"))
    monkeypatch.syspath_prepend(str(installed))
    forget()
    yield
    forget()


@pytest.mark.slow
def test_policies_of_packages_are_listed_by_the_command(installed: Path) -> None:
    command, env = [sys.executable, "-m", "placeto", "list", "placers"], {"PYTHONPATH": f"{installed}:{ROOT}"}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    listed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert listed["pairwise"].startswith("Looks at each group")
    assert listed["solo"].startswith("Places each group")


@pytest.mark.usefixtures("extended")
def test_rewards_and_families_of_packages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "rewards") == run("list", "placement-rewards") == run("list", "families") == 0
    listed = capsys.readouterr().out
    assert re.search("^log-drop +Drop of the logarithm", listed, re.MULTILINE)
    assert re.search("^speed +How many steps are made", listed, re.MULTILINE)
    assert re.search("^twins +two towers of dense layers$", listed, re.MULTILINE)


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize(("placer", "kind"), [("pairwise", EpisodePlacer), ("solo", SamplingPlacer)])
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
    with pytest.raises(CheckpointError, match="install the package"):
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
    with pytest.raises(ConfigError, match=says):
        check_config(replace(config, learning=replace(config.learning, **learning)))


def test_names_that_are_taken_are_refused(adds: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    adds("placeto.policies", "gdp = ours:POLICY")
    says = fails(capsys, "list", "placers")
    assert says == (
        "error: entry point gdp = 'ours:POLICY' in placeto.policies of ours: 'gdp' is a name of Placeto itself, too: "
        "rename one, or uninstall it\n"
    )
    with pytest.raises(ExtensionError, match="'gdp' is a name of Placeto itself"):
        load_placer("etf")


def test_two_packages_with_a_name_in_common_are_refused(adds: Callable[..., None]) -> None:
    adds("placeto.rewards", "mine = ours:reward")
    adds("placeto.rewards", "mine = theirs:reward", package="theirs")
    with pytest.raises(ExtensionError, match=r"'mine' is a name of entry point mine = '(ours|theirs):reward'.*, too"):
        rewards.reward_names()


FAMILY = """
class Family:
    name, description, splits = "cifar10", "graphs", {"train": 1}
    def load(self, split, index): ...
del Family.LACKS
FAMILIES = {"NAME": Family()}
"""


def test_families_must_be_whole_and_have_names_of_their_own(adds: Callable[..., None]) -> None:
    adds("placeto.families", "ours = ours:FAMILIES", FAMILY.replace("NAME", "cifar10").replace("del Family.LACKS", ""))
    with pytest.raises(ExtensionError, match=r"a family 'cifar10', too"):
        families()


def test_families_without_a_dictionary_are_refused(adds: Callable[..., None]) -> None:
    adds("placeto.families", "ours = ours:FAMILY", "FAMILY = 1")
    with pytest.raises(ExtensionError, match="must be a dictionary of families, not 1"):
        families()


WRONG = """
from placeto.problem.graph import ComputationGraph
class Family:
    name, description, splits = "mine", "graphs", SPLITS
    def load(self, split, index): return ComputationGraph.from_ops("g", [{"name": "a"}] * 2) if index else None
FAMILIES = {NAME: FAMILY}
"""


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"NAME": "3"}, "the name of a family must be text, not 3"),
        ({"FAMILY": "Family"}, "the family 'mine' is a class, it must be an object"),
        ({"SPLITS": "None"}, "must be numbers of graphs by name, such as {'train': 4, 'test': 2}, not None"),
        ({"SPLITS": "{'train': '2'}"}, "splits of the family 'mine' must be numbers of graphs by name"),
        ({"SPLITS": "{'train': -2}"}, "splits of the family 'mine' must be numbers of graphs by name"),
        ({}, "load of the family 'mine' must return a ComputationGraph, not NoneType"),
    ],
)
def test_families_of_other_values_are_refused(adds: Callable[..., None], changed: dict[str, str], says: str) -> None:
    code = WRONG
    for name, value in ({"NAME": "'mine'", "FAMILY": "Family()", "SPLITS": "{'train': 2}"} | changed).items():
        code = re.sub(rf"\b{name}\b", value, code)
    adds("placeto.families", "ours = ours:FAMILIES", code)
    with pytest.raises(ExtensionError, match=rf"in placeto\.families of ours: .*{says}"):
        load_split("mine", "train")
    if not changed:
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


def test_a_family_that_lacks_something_is_refused(adds: Callable[..., None]) -> None:
    adds("placeto.families", "ours = ours:FAMILIES", FAMILY.replace("NAME", "mine").replace("LACKS", "splits"))
    with pytest.raises(ExtensionError, match=r"in placeto\.families of ours: the family 'mine' has no splits"):
        load_family("mine")
    assert load_family("cifar10").name == "cifar10"  # the others are there all the same


@pytest.mark.parametrize(
    ("point", "code", "says"),
    [
        ("ours:mine", "1 / 0", r"can't be loaded: ZeroDivisionError: division by zero \(.*ours\.py, line 1\)"),
        ("ours:mine", "def (", r"can't be loaded: SyntaxError: invalid syntax \(ours\.py, line 1\)"),
        ("ours:mine", "exit(3)", "can't be loaded: SystemExit: 3"),
        ("ours:mine:too", "", r"entry point mine = 'ours:mine:too' in placeto\.policies of ours: must be module:name"),
    ],
)
def test_a_package_that_cant_be_imported_is_refused(
    adds: Callable[..., None], point: str, code: str, says: str
) -> None:
    adds("placeto.policies", f"mine = {point}", code)
    with pytest.raises(ExtensionError, match=says):
        placer_names()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("lambda: 1", "must take one argument, the makespans"),
        ("lambda x: x[1:].long()", r"returns numbers of type torch\.int64, it must be finite floats"),
        ("lambda x: x[1:] / 0", "returns numbers that are not finite"),
    ],
)
def test_a_reward_of_other_numbers_is_refused(adds: Callable[..., None], code: str, says: str) -> None:
    adds("placeto.rewards", "mine = ours:reward", f"reward = {code}")
    with pytest.raises(ExtensionError, match=says):
        rewards.find_reward("mine")(torch.ones(3, 2))


def test_a_reward_that_changes_its_makespans_changes_a_copy(adds: Callable[..., None]) -> None:
    adds("placeto.rewards", "mine = ours:reward", "def reward(x):\n    x -= 5\n    return x[1:]")
    makespans = torch.ones(3, 2)
    assert (rewards.find_reward("mine")(makespans) == -4).all()
    assert (makespans == 1).all()


def test_a_reward_that_doesnt_fit_is_refused(adds: Callable[..., None]) -> None:
    adds("placeto.rewards", "mine = ours:reward\nother = ours:NUMBER", "NUMBER = 1\ndef reward(x):\n    return x")
    with pytest.raises(ExtensionError, match="is no function, but 1"):
        rewards.find_reward("other")
    with pytest.raises(ExtensionError, match=r"returns \(3, 2\) for makespans \(3, 2\), it must be \(2, 2\)"):
        rewards.find_reward("mine")(torch.ones(3, 2))


def test_a_reward_of_placements_that_doesnt_fit_is_refused(adds: Callable[..., None]) -> None:
    adds("placeto.placement_rewards", "mine = ours:reward", "def reward(x):\n    return x.mean()")
    with pytest.raises(ExtensionError, match=r"returns float64 for makespans \(3, 2\), it must be \(3, 2\)"):
        rewards.find_placement_reward("mine")(np.ones((3, 2)))


def test_another_module_of_the_same_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user's own graphs.py hides the families that come with the package."""
    (tmp_path / "charts.py").write_text("LINES = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExtensionError, match=r"no attribute 'FAMILIES'; charts is .*charts\.py: if that is another"):
        load_extension(EntryPoint("charts", "charts:FAMILIES", "placeto.families"))
