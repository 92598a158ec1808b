"""What the training loop needs of a learner: its state, an iteration, a validation; and what all learners share.

Legend: C problems, W decisions of the largest problem (groups, or ops), N ops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from placeto.environment.instance import Measure
from placeto.problem.problem import PlacementProblem
from placeto.training.checkpoint import capture_random, restore_random
from placeto.training.learners.replay import Replay
from placeto.training.ranks import ALONE, Ranks
from placeto.training.rollout import Stopwatch

RANDOM = 4  # random passes, or placements, of each validation problem
Prepared = TypeVar("Prepared")
Report = Callable[[float, str], None]
"""Told the finished share of a training, in 0..1, and a note."""


@dataclass(eq=False)
class TrainState:
    """What changes while training, all of it in the checkpoint."""

    policy: nn.Module
    optimizer: torch.optim.Optimizer
    torch_random: torch.Generator
    random: np.random.Generator
    elite: np.ndarray  # (C, W) int64, best placement of each training problem met so far
    elite_score: np.ndarray  # (C,) float64, its penalised makespan relative to the best single device
    iteration: int = 0
    simulations: int = 0
    elapsed: float = 0.0  # seconds
    best_validation: float = np.inf
    best_parameters: dict[str, Tensor] = field(default_factory=dict)
    average: dict[str, Tensor] = field(default_factory=dict)  # of the parameters after the last iterations
    replay: Replay | None = None  # labelled states that are remembered
    history: dict[int, Tensor] = field(default_factory=dict)  # what a reward baseline remembers, by training problem
    # (simulations, seconds, elite_score) after each iteration that improved on a training problem, by its number
    improvements: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)
    controls: dict[str, float] = field(default_factory=dict)  # what doesn't change while training, by tag
    devices: int = 0  # of the largest cluster that the policy has learned on, 0 = unknown
    graphs: dict[str, dict[str, str]] = field(default_factory=dict)  # "training", "validation": names by likeness

    def average_parameters(self, decay: float) -> None:
        """Let the moving average follow the parameters; it forgets as much as `decay` says, at first more."""
        now, count = self.policy.state_dict(), self.iteration
        kept = min(decay, (count - 1) / (count + 1))
        old = self.average or now
        self.average = {name: value.lerp(old[name].to(value), kept) for name, value in now.items()}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it the policy has the moving average for its parameters."""
        own = {name: value.clone() for name, value in self.policy.state_dict().items()}
        self.policy.load_state_dict(self.average or own)
        try:
            yield
        finally:
            self.policy.load_state_dict(own)

    def saved(self) -> dict[str, Any]:
        """All of it, for a checkpoint; without a validation so far the best parameters are the latest."""
        return {
            "parameters": self.policy.state_dict(),
            "best_parameters": self.best_parameters or self.policy.state_dict(),
            "average": self.average,
            "best_validation": float(self.best_validation),
            "optimizer": self.optimizer.state_dict(),
            "random": capture_random([self.torch_random, self.random]),
            "elite": torch.from_numpy(self.elite),
            "elite_score": torch.from_numpy(self.elite_score),
            "history": self.history,
            "replay": None if self.replay is None else self.replay.saved(),
            "improvements": self.improvements,
            "controls": self.controls,
            "iteration": self.iteration,
            "simulations": self.simulations,
            "elapsed": self.elapsed,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Put back what `saved` gave."""
        self.policy.load_state_dict(saved["parameters"])
        self.average = dict(saved["average"])
        self.optimizer.load_state_dict(saved["optimizer"])
        restore_random(saved["random"], [self.torch_random, self.random])
        self.elite, self.elite_score = saved["elite"].numpy().copy(), saved["elite_score"].numpy().copy()
        self.best_validation = saved["best_validation"]
        if np.isfinite(self.best_validation):  # else these are only the latest parameters
            self.best_parameters = dict(saved["best_parameters"])
        if self.replay is not None and saved["replay"] is not None:  # they are forgotten when their stage is over
            self.replay.restore(saved["replay"])
        self.history = dict(saved["history"])
        self.improvements = {index: list(points) for index, points in saved["improvements"].items()}
        self.iteration, self.simulations = saved["iteration"], saved["simulations"]
        self.elapsed = saved["elapsed"]

    def note_improvements(self) -> None:
        """Remember what the best placements met are worth, where that is news."""
        for index in np.flatnonzero(np.isfinite(self.elite_score)).tolist():
            points, score = self.improvements.setdefault(index, []), float(self.elite_score[index])
            if not points or score < points[-1][2]:
                points.append((self.simulations, self.elapsed, score))


@dataclass(frozen=True, eq=False)
class Validation:
    """What the policy's most likely decisions are worth on the validation problems."""

    end: np.ndarray  # (C,) float64, penalised makespan at the end, relative to the best single device
    best_met: np.ndarray  # (C,) float64, likewise, the best on the way there
    to_heuristic: np.ndarray  # (C,) float64, the best met relative to the best cheap heuristic
    placement: np.ndarray  # (N,) int64, the best met, of the ops of the first problem
    judged: np.ndarray  # (C,) float64, the one of these of which the least mean decides which parameters are kept


@dataclass(frozen=True, eq=False)
class Run:
    """What a learner is made from."""

    config: Any  # of its kind, see `placeto.training.config`
    problems: Mapping[str, PlacementProblem]
    validation: Mapping[str, PlacementProblem]
    report: Report = lambda done, note: None
    ranks: Ranks = ALONE  # that train together
    measure: Measure | None = None  # if given, makespans of training problems are measured


class Learner(Protocol):
    """One kind of policy in training, made from a `Run`."""

    problems: Mapping[str, PlacementProblem]
    validation: Mapping[str, PlacementProblem]

    def initial_state(self) -> TrainState:
        """A fresh state, which depends on the config's seed alone."""

    def iterate(self, state: TrainState, done: float) -> dict[str, float]:
        """One iteration, at the share `done` of the training: roll out, loss, step. Returns the numbers to log."""

    def validate(self, state: TrainState) -> Validation:
        """Judge the present parameters; leaves the state as it is."""

    def validate_random(self) -> tuple[np.ndarray, np.ndarray]:
        """(C,) what `Validation` calls end and best met, of uniformly random decisions: means over `RANDOM` draws."""

    def best_placement(self, state: TrainState, index: int) -> np.ndarray:
        """(N,) best placement of a training problem's ops met so far."""


def prepare(
    problems: Mapping[str, PlacementProblem],
    one: Callable[[PlacementProblem], Prepared],
    report: Report,
) -> list[Prepared]:
    """Prepare each problem for learning, and report which one it is."""
    prepared = []
    for number, (name, problem) in enumerate(problems.items(), 1):
        report(0.0, f"preparing graph {number} of {len(problems)}: {name}")
        prepared.append(one(problem))
    return prepared


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> float:
    """Set and return the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def seconds(watch: Stopwatch, began: float) -> dict[str, float]:
    """To log: the time of each part of an iteration that began then, and of what is in no part."""
    other = time.perf_counter() - began - sum(watch.seconds.values())
    return {f"seconds/{part}": value for part, value in (watch.seconds | {"other": other}).items()}
