"""The interface of a learner for the training loop: state, iterations, validation; and functions of all learners.

Legend: C problems, N ops, W ops of the largest problem.
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
from placeto.errors import TrainingError
from placeto.policies.external import find_policy
from placeto.problem.problem import PlacementProblem
from placeto.training.checkpoint import capture_random, kind_of, restore_random
from placeto.training.learners.replay import Replay
from placeto.training.ranks import ALONE, Ranks
from placeto.training.rollout import Stopwatch

_VARYING = "average", "optimizer", "history", "replay", "improvements", "controls"  # in which a state grows
RANDOM = 4  # number of random passes, or random placements, of each validation problem
Prepared = TypeVar("Prepared")
Report = Callable[[float, str], None]
"""A function of the finished share of a training, in 0..1, and a note, which shows the progress."""


@dataclass(eq=False)
class TrainState:
    """State of a training run. The checkpoint has all of it."""

    policy: nn.Module
    optimizer: torch.optim.Optimizer
    torch_random: torch.Generator
    random: np.random.Generator
    elite: np.ndarray  # (C, W) int64, best placement met of each training problem's ops
    elite_score: np.ndarray  # (C,) float64, its penalised makespan relative to the best single device; inf if none
    iteration: int = 0  # iterations so far
    simulations: int = 0  # placements simulated so far
    elapsed: float = 0.0  # seconds since the first iteration began
    best_validation: float = np.inf  # least mean of `Validation.judged` so far
    best_parameters: dict[str, Tensor] = field(default_factory=dict)  # with that validation; {} before the first one
    average: dict[str, Tensor] = field(default_factory=dict)  # moving average of the parameters after each iteration
    replay: Replay | None = None  # remembered states; None = none are remembered
    history: dict[int, Tensor] = field(default_factory=dict)  # earlier rounds for the reward baseline, by problem
    # (simulations, seconds, elite_score) after each iteration that improved on a training problem, by its number
    improvements: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)
    controls: dict[str, float] = field(
        default_factory=dict
    )  # by tag: numbers of the controls, and the error of `best_validation`
    devices: int = 0  # devices of the largest cluster that the policy was trained on, 0 = unknown
    graphs: dict[str, dict[str, str]] = field(default_factory=dict)  # "training", "validation": names by likeness

    @classmethod
    def fresh(cls, config: Any, elite: np.ndarray, elite_score: np.ndarray, random_device: str = "cpu") -> TrainState:
        """Make the state of a run that begins, with a fresh policy; its randomness depends on the config's seed alone.

        `elite` and `elite_score` are those of the state. Torch's random numbers are drawn on `random_device`.
        """
        torch.manual_seed(config.seed)
        policy = find_policy(config.placer).make(config.policy).to(config.device)
        return cls(
            policy=policy,
            optimizer=torch.optim.Adam(policy.parameters(), lr=config.learning.lr),
            torch_random=torch.Generator(random_device).manual_seed(config.seed),
            random=np.random.default_rng(config.seed),
            elite=elite,
            elite_score=elite_score,
        )

    def average_parameters(self, decay: float) -> None:
        """Update the moving average with the present parameters. In the first iterations the decay is smaller."""
        now, count = self.policy.state_dict(), self.iteration
        kept = min(decay, (count - 1) / (count + 1))
        old = self.average or now
        self.average = {name: value.lerp(old[name].to(value), kept) for name, value in now.items()}

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it the policy's parameters are their moving average; afterwards they are as before."""
        trained = {name: value.clone() for name, value in self.policy.state_dict().items()}
        self.policy.load_state_dict(self.average or trained)
        try:
            yield
        finally:
            self.policy.load_state_dict(trained)

    def saved(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without `devices` and `graphs`, which the trainer adds.

        Before the first validation, the best parameters are the latest ones.
        """
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
        """Restore the state that `saved` returned.

        Raises:
            TrainingError: it isn't of this run, such as of other parameters or problems.
        """
        now, average, moments = self.saved(), saved["average"], saved["optimizer"]["state"]
        expected = {key: value for key, value in now.items() if key not in _VARYING}
        if average:  # {} in a run that has just begun
            expected["average"] = now["parameters"]
        for key, value in expected.items():
            if kind_of(saved[key]) != kind_of(value):
                raise TrainingError(f"{key} is of another kind, or of another shape")
        for number, parameter in enumerate(self.policy.parameters()):
            like = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
            if number in moments and kind_of(moments[number]) != kind_of(like):
                raise TrainingError(f"optimizer is of another kind, or of another shape, at parameter {number}")
        self.policy.load_state_dict(saved["parameters"])
        self.average = average
        self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": moments})
        restore_random(saved["random"], [self.torch_random, self.random])
        self.elite, self.elite_score = saved["elite"].numpy().copy(), saved["elite_score"].numpy().copy()
        self.best_validation = saved["best_validation"]
        if np.isfinite(self.best_validation):  # else there was no validation, and these are the latest parameters
            self.best_parameters = dict(saved["best_parameters"])
        if self.replay is not None and saved["replay"] is not None:  # None once the supervised stage is over
            self.replay.restore(saved["replay"])
        self.history, self.improvements, self.controls = saved["history"], saved["improvements"], saved["controls"]
        self.iteration, self.simulations = saved["iteration"], saved["simulations"]
        self.elapsed = saved["elapsed"]

    def keep(self, index: int, score: float, placement: np.ndarray) -> None:
        """Remember a placement (N,) of a training problem's ops, and its relative makespan, if it is the best met."""
        if score < self.elite_score[index]:
            self.elite_score[index] = score
            self.elite[index, : len(placement)] = placement

    def note_improvements(self) -> None:
        """Append a point to `improvements` for each training problem of which a better placement was met."""
        for index in np.flatnonzero(np.isfinite(self.elite_score)).tolist():
            points, score = self.improvements.setdefault(index, []), float(self.elite_score[index])
            if not points or score < points[-1][2]:
                points.append((self.simulations, self.elapsed, score))


@dataclass(frozen=True, eq=False)
class Validation:
    """Makespans of C validation problems after the policy's most likely decisions."""

    end: np.ndarray  # (C,) float64, penalised makespan at the end, relative to the best single device
    best_met: np.ndarray  # (C,) float64, best penalised makespan on the way there, relative to the best single device
    to_heuristic: np.ndarray  # (C,) float64, best penalised makespan, relative to the heuristics' best placement
    placement: np.ndarray  # (N,) int64, best placement met of the ops of the first problem
    judged: np.ndarray  # (C,) float64, `end` or `best_met`; parameters with the least mean of it are kept
    moves: np.ndarray  # (C,) int64, placements simulated on the way there; 1 if the policy places whole graphs


@dataclass(frozen=True, eq=False)
class Run:
    """The arguments of a training run, from which a learner is made."""

    config: Any  # settings of the kind of policy, see `placeto.training.config`
    problems: Mapping[str, PlacementProblem]  # training problems by name
    validation: Mapping[str, PlacementProblem]  # validation problems by name
    report: Report = lambda done, note: None
    ranks: Ranks = ALONE  # the processes that train together
    measure: Measure | None = None  # if given, makespans of training problems are measured
    resumed: bool = False  # whether the state will be that of a checkpoint


class Learner(Protocol):
    """One kind of policy in training, made from a `Run`."""

    problems: Mapping[str, PlacementProblem]
    validation: Mapping[str, PlacementProblem]

    def initial_state(self) -> TrainState:
        """Make a fresh state, whose randomness depends on the config's seed alone."""

    def iterate(self, state: TrainState, done: float) -> dict[str, float]:
        """Run one iteration: episodes, loss, gradient steps. Returns the numbers to log, by tag.

        `done` is the finished share of the training, in 0..1. The iteration changes the state.
        """

    def validate(self, state: TrainState) -> Validation:
        """Validate the present parameters. The state isn't changed."""

    def validate_random(self) -> tuple[np.ndarray, np.ndarray]:
        """Return `end` (C,) and `best_met` (C,) of uniformly random decisions; see `Validation`.

        They are means over `RANDOM` draws.
        """


def prepare(
    problems: Mapping[str, PlacementProblem],
    prepare_problem: Callable[[PlacementProblem], Prepared],
    report: Report,
) -> list[Prepared]:
    """Call `prepare_problem` on each problem, after reporting the problem's number and name; return the results."""
    prepared = []
    for number, (name, problem) in enumerate(problems.items(), 1):
        report(0.0, f"preparing graph {number} of {len(problems)}: {name}")
        prepared.append(prepare_problem(problem))
    return prepared


def episode_makespans(makespan: np.ndarray, heuristic: np.ndarray | float) -> dict[str, float]:
    """Return what an iteration's episodes reach, to log by tag.

    Args:
        makespan: (T, ..., B), after each of T steps of the episodes, divided by that of the best single device.
        heuristic: (B,) that of the best cheap heuristic of each episode's problem, divided by the same.
    """
    relative = makespan / heuristic
    return {"makespan/episode_end": float(relative[-1].mean()), "makespan/episode_best": float(relative.min(0).mean())}


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> float:
    """Set and return the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def seconds(watch: Stopwatch, began: float) -> dict[str, float]:
    """Return the seconds of each part of an iteration, and of the rest since `began`, to log by tag."""
    other = time.perf_counter() - began - sum(watch.seconds.values())
    return {f"seconds/{part}": value for part, value in (watch.seconds | {"other": other}).items()}
