"""Settings of checkpoints that older versions made, in today's terms.

A setting that is gone is accepted at the value that is now built in. Another value of the policy or the environment is
refused; another one of learning is kept, since it has no say in what a checkpoint answers: only going on with such a
run is refused, by the comparison of settings there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BUILT_IN: dict[str, dict[str, Any]] = {
    "policy": {"features": "schedule", "fine_scale": True, "messages": "pairs", "pooling": "none", "head": "pair"},
    "env": {"stay": False},
}
_WITHOUT_EFFECT = {"policy": {"fixed_devices"}, "env": set[str]()}
_LEARNING_WAS: dict[str, Any] = {
    "warmup": 0.6,
    "warmup_lr": 2e-3,
    "warmup_replicas": 2,
    "warmup_moves": None,
    "labels": 24,
    "replay": 0,
    "fits": 1,
    "annealed": 0.0,
    "parts": 0.0,
}
"""Defaults of an iterative policy's learning before its settings were renamed."""
_RENAMED = {
    "warmup_lr": "supervised_lr",
    "warmup_replicas": "supervised_replicas",
    "warmup_moves": "supervised_moves",
}
_ONE_SHOT_BUILT_IN = {"warmup": 0.0, "imitate_best": 0.0, "reward": "sqrt"}


class OlderError(ValueError):
    """A setting that this version has no more; the message names it, its value and what is built in."""


def modern(placer: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a checkpoint of a learned placer as this version would write it.

    Raises:
        OlderError: the policy or the environment was made with a setting that is gone.
    """
    learning = config.get("learning")
    changed = {"costs": "roofline", **config}
    if placer == "placeto":
        changed |= {part: _without(part, config[part]) for part in _BUILT_IN if isinstance(config.get(part), Mapping)}
        if isinstance(learning, Mapping) and "warmup" in learning:
            changed["learning"] = _renamed({**_LEARNING_WAS, **learning})
    elif isinstance(learning, Mapping) and "teacher" in learning:
        gone = {name for name, value in _ONE_SHOT_BUILT_IN.items() if learning.get(name, value) == value}
        if "warmup" in gone:
            gone |= {"teacher", "warmup_lr"}
        changed["learning"] = {name: value for name, value in learning.items() if name not in gone}
    return changed


def _without(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    built_in = _BUILT_IN[part]
    for name, value in built_in.items():
        if values.get(name, value) != value:
            raise OlderError(f"made with {part}.{name} {values[name]!r}, which is gone ({value!r} is built in)")
    gone = built_in.keys() | _WITHOUT_EFFECT[part]
    return {name: value for name, value in values.items() if name not in gone}


def _renamed(learning: dict[str, Any]) -> dict[str, Any]:
    """Learning settings of an iterative policy by their names of today."""
    learning["reinforcement"] = 1.0 - learning.pop("warmup")
    for old, new in _RENAMED.items():
        learning[new] = learning.pop(old)
    if learning["supervised_moves"] is None:
        learning["supervised_moves"] = learning.get("moves", 40)
    if not learning.pop("intermediate_rewards", True):
        learning["reward"] = "at-the-end"
    return learning
