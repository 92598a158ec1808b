"""Learned placers of other packages that don't fit, and one that does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from placeto.errors import PlacerError, TrainingError
from placeto.placers import load_placer, placer_names
from placeto.policies import external
from placeto.training.config import default_config
from placeto.training.trainer import train
from tests.cases import toy_problem

POLICY = """
from dataclasses import dataclass
from placeto.policies.external import ExternalPolicy
@dataclass
class Config:
    width: int
@dataclass
class Fine:
    width: int = 1
@dataclass
class Picky:
    width: int = 1
    def __post_init__(self):
        raise RuntimeError("no")
THINGS = {
    "missing": None,
    "kind": ExternalPolicy("twice", Fine, print, ""),
    "config": ExternalPolicy("iterative", dict, print, ""),
    "default": ExternalPolicy("iterative", Config, print, ""),
    "units": ExternalPolicy("one-shot", Fine, print, ""),
    "picky": ExternalPolicy("iterative", Picky, print, ""),
    "takes": ExternalPolicy("iterative", Fine, lambda: None, ""),
    "sentence": ExternalPolicy("iterative", Fine, lambda config: None, "two\\nlines"),
    "env": ExternalPolicy("iterative", Fine, lambda config: None, "", env=None),
}
globals().update(THINGS)
del missing
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing", "can't be loaded: .*'missing'"),
        ("THINGS", "is no ExternalPolicy, but {"),
        ("kind", "kind must be iterative or one-shot, not 'twice'"),
        ("config", "config must be a dataclass"),
        ("default", "each setting of config needs a default"),
        ("units", "config of a one-shot policy needs units"),
        ("picky", r"each setting of config needs a default \(RuntimeError: no \(.*ours\.py, line 14\)"),
        ("takes", "policy must be a function or class of one argument, the config, not <function"),
        ("sentence", r"sentence must be one line of text, not 'two\\nlines'"),
        ("env", "env must be an EnvConfig, not None"),
    ],
)
def test_policies_that_dont_fit_are_refused(adds: Callable[..., None], name: str, says: str) -> None:
    adds("placeto.policies", f"mine = ours:{name}", POLICY)
    with pytest.raises(PlacerError, match=rf"entry point mine = 'ours:{name}' in placeto\.policies of ours.*{says}"):
        placer_names()
    assert load_placer("etf"), "what isn't asked for isn't imported"


NETWORK = """
import torch
from dataclasses import dataclass
from placeto.policies.external import ExternalPolicy
@dataclass(frozen=True)
class Config:
    width: int = 1
class Network(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.rates = torch.linspace(0, 1, 3).tolist()  # no values on the device meta
        self.score = torch.nn.Parameter(torch.zeros(()))
    def forward(self, data):
        moves = data.legal + self.score
        return RETURNS
def broken(config):
    raise RuntimeError("no")
mine = ExternalPolicy("iterative", Config, Network, "")
broken = ExternalPolicy("iterative", Config, broken, "")
empty = ExternalPolicy("iterative", Config, lambda config: torch.nn.ReLU(), "")
number = ExternalPolicy("iterative", Config, lambda config: 3, "")
whole = ExternalPolicy("one-shot", type("Units", (Config,), {"units": "groups"}), Network, "")
learning = ExternalPolicy("iterative", Config, Network, "", learning=3)
"""


def trained(out: Path) -> dict[str, float]:
    config = default_config("mine", str(out))
    learning = replace(config.learning, replicas=2, moves=2)
    problems = {"r": toy_problem(0, 20, 2)}
    return train(replace(config, iterations=1, learning=learning), problems, None)


def made(out: str) -> object:
    return external.find_policy("mine").make(default_config("mine", out).policy)


def test_a_policy_that_fits_is_trained_and_placed_with(adds: Callable[..., None], tmp_path: Path) -> None:
    adds("placeto.policies", "mine = ours:mine", NETWORK.replace("RETURNS", "moves, moves"))
    trained(tmp_path / "run")
    problem = toy_problem(0, 20, 2)
    assert load_placer(tmp_path / "run")(problem, simulations=30).simulations == 30


@pytest.mark.parametrize(
    ("returns", "says"),
    [
        ("None", "Network returns NoneType; it must return the logits and the predicted changes of all moves, two ten"),
        ("moves", r"Network returns torch\.float32 \(\d+, 2\); it must"),
        (
            "(moves[:1], moves[:1])",
            r"returns torch\.float32 \(1, 2\) and .*; it must .*, two tensors of floats \(\d+, 2\)",
        ),
        ("(moves.long(), moves)", r"returns torch\.int64 "),
        ("(moves.detach(), moves)", "returns logits that don't depend on its parameters"),
    ],
)
def test_answers_that_dont_fit_are_refused(adds: Callable[..., None], returns: str, says: str, tmp_path: Path) -> None:
    adds("placeto.policies", "mine = ours:mine", NETWORK.replace("RETURNS", returns))
    with pytest.raises(PlacerError, match=says):
        trained(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("broken", PlacerError, r"policy ours\.broken can't be made of .*: RuntimeError: no \(.*ours\.py, line 17\)"),
        ("empty", PlacerError, "makes a network without parameters"),
        ("number", PlacerError, "must make a Module, not 3"),
        ("whole", PlacerError, r"policy ours\.Network must make a OneShotPolicy, not Network\(\)"),
        ("learning", TrainingError, "learning must be a LearningConfig, not 3"),
    ],
)
def test_networks_that_dont_fit_are_refused(
    adds: Callable[..., None], name: str, error: type[ValueError], says: str, tmp_path: Path
) -> None:
    adds("placeto.policies", f"mine = ours:{name}", NETWORK)
    with pytest.raises(error, match=says):
        made(str(tmp_path))
