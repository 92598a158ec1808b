"""Settings that have no effect beside the others: who gives one is told so."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from placeto.training.config import AnyTrainConfig, OneShotTrainConfig, TrainConfig

REINFORCED = ("lr", "replicas", "moves", "reward", "discount", "clip", "epochs", "minibatch", "entropy")
"""Settings of an iterative policy's learning that only reinforcement reads."""
SUPERVISED = ("supervised_lr", "supervised_replicas", "supervised_moves", "labels", "replay", "fits", "annealed")
"""Settings of an iterative policy's learning that only the supervised stage reads."""


def without_effect(config: AnyTrainConfig, usual: AnyTrainConfig, fine_tuned: bool) -> list[str]:
    """Return a sentence for each setting that was given, but that the training never reads.

    Args:
        config: the settings of the training.
        usual: the settings if none is given; those that are equal in `config` count as not given.
        fine_tuned: the training begins with a checkpoint.
    """
    changed = set(_changed(config.learning, usual.learning))
    return [
        f"learning.{name}: has no effect, because {why}"
        for names, why in _unread(config, fine_tuned)
        for name in names
        if name in changed
    ]


def _unread(config: AnyTrainConfig, fine_tuned: bool) -> list[tuple[tuple[str, ...], str]]:
    """Return names of settings of the learning that aren't read, with the reason."""
    learning: Any = config.learning
    unread: list[tuple[tuple[str, ...], str]] = []
    if isinstance(config, TrainConfig):
        if learning.reinforcement == 0:
            unread.append((("lr",), "learning.reinforcement is 0; learning.supervised_lr is the learning rate then"))
            unread.append((REINFORCED[1:], "learning.reinforcement is 0"))
        if learning.reinforcement == 1:
            unread.append((SUPERVISED, "learning.reinforcement is 1"))
    if isinstance(config, OneShotTrainConfig):
        if learning.algorithm == "reinforce":
            unread.append((("clip", "epochs", "minibatch"), "learning.algorithm is reinforce"))
        if learning.baseline != "quantile":
            unread.append((("quantile",), f"learning.baseline is {learning.baseline}, not quantile"))
        if learning.baseline != "moving":
            unread.append((("decay",), f"learning.baseline is {learning.baseline}, not moving"))
        if not learning.normalise:
            unread.append((("by_graph",), "learning.normalise is off"))
        if config.iterations is None and config.simulations is not None:
            unread.append(
                (("imitation", "searched"), "the training has a limit of simulations, but none of iterations")
            )
        elif not learning.imitation:
            unread.append((("searched",), "learning.imitation is 0"))
        if not fine_tuned:
            unread.append((("soften",), "the training doesn't begin with a checkpoint"))
    return unread


def _changed(settings: Any, usual: Any) -> list[str]:
    """Return the names of the fields in which two instances of one dataclass differ."""
    assert is_dataclass(settings)
    names = [field.name for field in fields(settings)]
    return [name for name in names if getattr(settings, name) != getattr(usual, name)]
