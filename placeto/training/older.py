"""Checkpoints that older versions made.

A setting that is gone is accepted at the value that is now built in; another value of learning is kept, since it has no
say in what a checkpoint answers: only going on with such a run is refused, by the comparison of settings there. What a
search has no setting for any more is forgotten. The output of seq2seq's decoder wasn't normalised then. A network that
is gone is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_GONE = "pair_messages.", "shortcut."
_PAPER_GONE = "message_passing.", "pooling."
_LEARNING_BUILT_IN = {"algorithm": "ppo", "baseline": "replicas", "baseline_rounds": 10}
_SEARCH_GONE = (
    *("levels", "timed_levels", "timed_scales", "rounded_to", "fewest", "pass_parts", "pass_on_parts", "together"),
    *("most_together", "moves", "patience", "on_sweeps", "seconds_on_sweeps", "seconds_on_parts", "worth_parts"),
    *("on_groups", "on_levels", "share", "cycles"),
)
_ONE_SHOT_BUILT_IN = {"warmup": 0.0, "imitate_best": 0.0}


class OlderError(ValueError):
    """What a checkpoint holds is gone in this version; the message says what."""


def modern(placer: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a checkpoint of a learned placer as this version would write it."""
    learning = config.get("learning")
    changed = {"costs": "roofline", **config}
    if placer != "placeto" and isinstance(learning, Mapping) and "teacher" in learning:
        gone = {name for name, value in _ONE_SHOT_BUILT_IN.items() if learning.get(name, value) == value}
        if "warmup" in gone:
            gone |= {"teacher", "warmup_lr"}
        changed["learning"] = {name: value for name, value in learning.items() if name not in gone}
    policy = config.get("policy")
    if placer == "seq2seq" and isinstance(policy, Mapping):
        changed["policy"] = {"normalised": False, **policy}
    if placer == "placeto" and isinstance(learning, Mapping):
        gone = {name for name, value in _LEARNING_BUILT_IN.items() if learning.get(name) == value}
        changed["learning"] = {name: value for name, value in learning.items() if name not in gone}
    search = config.get("search")
    if placer == "placeto" and isinstance(search, Mapping):
        changed["search"] = {name: value for name, value in search.items() if name not in _SEARCH_GONE}
    return changed


def check_network(placer: str, parameters: Iterable[str]) -> None:
    """Refuse parameters, by their names, of a network that is gone.

    Raises:
        OlderError: they are of one.
    """
    if placer == "placeto" and any(str(name).startswith(_GONE) for name in parameters):
        raise OlderError("made with messages between (group, device) pairs, a network that is gone")
    if placer == "placeto-paper" and any(str(name).startswith(_PAPER_GONE) for name in parameters):
        raise OlderError("made with a network that shares less with the paper's, and is gone")
