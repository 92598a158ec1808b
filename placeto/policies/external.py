"""Learned placers by name: those of `placeto.policies.POLICIES`, and those of other packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, Literal

from placeto.environment.env_config import EnvConfig
from placeto.errors import PlacerError
from placeto.heuristics import HEURISTICS
from placeto.plumbing import extensions
from placeto.plumbing.extensions import described, load_extension, named_extensions, raised, takes_one
from placeto.policies import POLICIES, PolicyEntry

_KINDS = "iterative", "one-shot"


@dataclass(frozen=True)
class ExternalPolicy:
    """A learned placer of another package, which an entry point of the group `placeto.policies` names."""

    kind: Literal["iterative", "one-shot"]
    """An iterative policy moves one node at a time. A one-shot policy places a whole graph at once. A search is guided
    by the first as by the policy of `placeto`, and places with samples of the second."""
    config: type
    """Dataclass of the policy's settings, each with a default. For a one-shot policy, one of them is `units`."""
    policy: Callable[[Any], Any]
    """Makes the network, an ``nn.Module``, from an instance of `config`. The network of an iterative policy maps the
    observation of `placeto.environment.tensors.to_data` to logits (V, D) and predicted changes (V, D). It learns by
    reinforcement alone, unless it has the methods and settings of `PlacetoPolicy`. The network of a one-shot policy is
    a `OneShotPolicy`."""
    sentence: str
    """The sentence about the placer in the output of `placeto list placers`."""
    learning: Any = None
    """Default settings of its learning, a `LearningConfig` or `OneShotLearningConfig`; None = those of its kind."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """Default settings of the episodes of an iterative policy."""

    def make(self, settings: Any) -> Any:
        """Return a new network with the given settings, an instance of `config`.

        Raises:
            PlacerError: `policy` fails, or what it makes is no network of this kind or has no parameters to learn.
        """
        from torch import nn

        from placeto.policies.one_shot.one_shot_policy import OneShotPolicy

        try:
            network = self.policy(settings)
        except Exception as problem:
            raise PlacerError(f"policy {self._name} can't be made of {settings!r:.60}: {raised(problem)}") from None
        kind = OneShotPolicy if self.kind == "one-shot" else nn.Module
        if not isinstance(network, kind):
            raise PlacerError(f"policy {self._name} must make a {kind.__name__}, not {network!r:.60}")
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise PlacerError(f"policy {self._name} makes a network without parameters: there is nothing to learn")
        return network

    @property
    def _name(self) -> str:
        return f"{self.policy.__module__}.{getattr(self.policy, '__qualname__', type(self.policy).__name__)}"


AnyPolicy = PolicyEntry | ExternalPolicy


def find_policy(name: str) -> AnyPolicy:
    """Return what the learned placer of a name is made of.

    Raises:
        PlacerError: no learned placer has this name; or the package that has it can't be used; or two packages have a
            learned placer of the same name, or one has a name of Placeto's.
    """
    others = _others()
    if name in POLICIES:
        return POLICIES[name]
    if name in others:
        return _load(name)
    raise PlacerError(f"no installed package has a learned placer {name!r:.60}; there are {', '.join(policy_names())}")


def policy_names() -> list[str]:
    """Return the names of all learned placers, those of Placeto first.

    Raises:
        PlacerError: two packages have a learned placer of the same name, or one has a name of Placeto's.
    """
    return [*POLICIES, *_others()]


@cache
def _others() -> dict[str, EntryPoint]:
    return named_extensions(extensions.POLICIES, {*POLICIES, *HEURISTICS})


@cache
def _load(name: str) -> ExternalPolicy:
    """Import and return what the entry point of a learned placer names.

    Raises:
        PlacerError: it can't be imported, or it is no usable `ExternalPolicy`.
    """
    point = _others()[name]
    policy = load_extension(point)
    if wrong := _wrong(policy):
        raise PlacerError(f"{described(point)}: {wrong}")
    assert isinstance(policy, ExternalPolicy)
    return policy


def _wrong(policy: Any) -> str:
    """Say what is wrong with what an entry point names; "" if it is a usable `ExternalPolicy`."""
    if not isinstance(policy, ExternalPolicy):
        return f"is no ExternalPolicy, but {policy!r:.60}"
    if policy.kind not in _KINDS:
        return f"kind must be {' or '.join(_KINDS)}, not {policy.kind!r:.60}"
    if not (isinstance(policy.config, type) and is_dataclass(policy.config)):
        return f"config must be a dataclass, not {policy.config!r:.60}"
    try:
        settings = policy.config()
    except Exception as problem:  # of the package's own code
        return f"each setting of config needs a default ({raised(problem)})"
    if not callable(policy.policy) or not takes_one(policy.policy):
        return f"policy must be a function or class of one argument, the config, not {policy.policy!r:.60}"
    if not (isinstance(policy.sentence, str) and policy.sentence.isprintable()):
        return f"sentence must be one line of text, not {policy.sentence!r:.60}"
    if not isinstance(policy.env, EnvConfig):
        return f"env must be an EnvConfig, not {policy.env!r:.60}"
    if policy.kind == "one-shot" and not hasattr(settings, "units"):
        return "config of a one-shot policy needs units, which get a device each: groups, ops, few or paper"
    return ""
