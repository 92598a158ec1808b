"""The training loop: iterate, log, validate, save. The learners in `placeto.training.learners` run the iterations."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from placeto.environment.instance import Measure
from placeto.errors import TrainingError
from placeto.formats.placement import save_placement
from placeto.plumbing.signals import Interruption, StopRequest
from placeto.policies.external import find_policy
from placeto.policies.one_shot.one_shot_policy import OneShotPolicy
from placeto.problem.files import locked
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.schedule import simulate
from placeto.simulator.threads import set_threads
from placeto.training.checkpoint import (
    FILE_NAME,
    UNTRAINED,
    check_shapes,
    find_checkpoint,
    load_checkpoint,
    matching,
    policy_of,
    save_checkpoint,
)
from placeto.training.config import (
    FINE_TUNING,
    AnyTrainConfig,
    OneShotLearningConfig,
    OneShotTrainConfig,
    TrainConfig,
    TraversalLearningConfig,
    check_config,
    check_loaded,
    default_config,
)
from placeto.training.curves import Curves
from placeto.training.graph_sets import check_graphs
from placeto.training.learners import LEARNERS
from placeto.training.learners.learner import Learner, Report, Run, TrainState
from placeto.training.ranks import Ranks
from placeto.training.rollout import DivergedError
from placeto.training.validation import controls, validate

__all__ = ["DEFAULT_MINUTES", "TrainConfig", "TrainingError", "fingerprint", "pretrained_config", "train"]

DEFAULT_MINUTES = 10.0
_NOT_OVER = math.nextafter(1.0, 0.0)  # largest finished share that an iteration is given, even if the time is up


def train(
    config: AnyTrainConfig,
    problems: Mapping[str, PlacementProblem],
    validation: Mapping[str, PlacementProblem] | None,
    *,
    initial: Mapping[str, Any] | None = None,
    resume: bool = False,
    report: Report = lambda done, note: None,
    measure: Measure | None = None,
) -> dict[str, float]:
    """Train a policy on some problems and choose its parameters on others.

    Writes ``checkpoint.pt``, ``untrained.pt`` (the same before training) and tensorboard events to ``config.out``;
    without validation problems also the best placements met, ``placement-0.json`` and so on in the order of the
    problems. Several processes started by
    ``torchrun`` train together. Only the first one validates, reports and writes.

    Args:
        config: settings of the training.
        problems: training problems by name.
        validation: problems by which the parameters are chosen; none of them may be a training problem. None = the
            training problems, for a policy that is used for these alone.
        initial: a checkpoint with whose parameters training begins (fine-tuning).
        resume: go on from the checkpoint in ``config.out``. With the same `config.iterations` the result is
            bit-identical to that of an uninterrupted run on the same machine. Limits in minutes depend on the clock.
        report: called with the finished share in 0..1 and a note; while a graph is prepared, with 0 and its name.
        measure: returns measured step times of training problems, by which moves are then rewarded. Validation stays
            simulated. For one process, and for training without a supervised stage.

    Returns:
        The last logged number of each tensorboard tag.

    Raises:
        TrainingError: a setting out of its range; or the tensorboard events can't be written; or no problem to train on
            or to validate on, a cluster of one device, a graph that is in both sets (even with other names or another
            order of ops), a validation graph that `initial` was trained on, ranks with different arguments or without
            an episode each, numbers that are not finite, or a checkpoint that can't be written. The last checkpoint
            written stays; or nothing to resume, or a checkpoint of another configuration or policy; or the other
            processes can't be reached, or one of them ended.
        PlacerError: a cluster has more devices than the policy is made for.
        PlacetoError: another process trains in ``config.out``.
        Interruption: Ctrl-C or SIGTERM came; the iteration is finished, and all is written. It is a KeyboardInterrupt.
    """
    check_config(config, measured=measure is not None)
    check_graphs(problems, validation, initial)
    if resume:
        find_checkpoint(config.out)
    with Ranks.from_environment(config.device) as ranks, _own(config.out) if ranks.first else nullcontext():
        _check_ranks(config, problems, ranks)
        held_out = problems if validation is None else validation
        run = Run(config, problems, held_out, ranks=ranks, measure=measure, resumed=resume)
        run = replace(run, report=report) if ranks.first else run
        return _train(run, initial, resume, validation is None)


@contextmanager
def _own(out: str) -> Iterator[None]:
    """Within it no other process can train in this directory; raises PlacetoError if one does."""
    Path(out).mkdir(parents=True, exist_ok=True)
    with locked(out):
        yield


def _train(run: Run, initial: Mapping[str, Any] | None, resume: bool, alone: bool) -> dict[str, float]:
    """Train on this rank; see `train`. All ranks stop together: by the first one's clock, or if any gets a signal."""
    prepared = time.perf_counter()
    config: AnyTrainConfig = run.config
    ranks, report = run.ranks, run.report
    set_threads(config.threads, config.threads if ranks.size > 1 else None)
    saved = load_checkpoint(config.out) if resume else None
    learner = LEARNERS[find_policy(config.placer).kind](run)
    state = learner.initial_state()
    if initial is not None:
        with matching("the checkpoint to begin with"):
            _begin_with(state, initial, config)
    if saved is not None:
        with matching(config.out):
            _restore(state, saved, config, learner)
    else:
        with _finite(config, state):
            state.controls = _controls(learner, state, run, prepared)
    if saved is None and ranks.first:
        state.graphs = dict((initial or {}).get("graphs", {}))
        _save(config, state, learner, UNTRAINED)
    state.devices, state.graphs = _seen(run, initial if saved is None else saved, alone)
    _check_alike(config, state, learner, ranks)
    state.note_improvements()
    began = time.perf_counter() - state.elapsed  # seconds count from the end of the preparation
    last: dict[str, float] = {}
    at = (state.iteration, state.simulations) if resume else None
    with Curves(config.out if ranks.first else None, by_placements=True, resumed=at) as curves, StopRequest() as stop:
        if not resume:
            curves.explain()
            names = "end", "best_met"  # of the network before training, so that the curves show all that it learns
            curves.numbers({f"validation/{at}": state.controls[f"validation/untrained_{at}"] for at in names}, 0)
        over = _over(config, state)
        while not ranks.any(bool(stop.number)) and not over:
            done = min(_share_done(config, state), _NOT_OVER)
            with _finite(config, state):
                numbers = learner.iterate(state, done)
            state.iteration += 1
            state.average_parameters(config.learning.average)
            state.elapsed = ranks.of_first(time.perf_counter() - began)
            over = _over(config, state)  # once an iteration, so that the last one is validated if the minutes end it
            state.note_improvements()
            numbers |= {"placements/simulated": float(state.simulations), "seconds/elapsed": state.elapsed}
            met = np.isfinite(state.elite_score)
            if met.any():
                numbers["makespan/best"] = float(state.elite_score[met].mean())
            if over or _validates(config, state.iteration):
                with _finite(config, state):
                    numbers |= validate(learner, state, curves, ranks)
            curves.numbers(numbers, state.iteration, state.simulations)
            last |= numbers
            state.elapsed = ranks.of_first(time.perf_counter() - began)
            if ranks.first and (over or state.iteration % config.save_every == 0):
                _save(config, state, learner)
            known = np.isfinite(state.best_validation)
            best = f", validation {state.best_validation:.4f} of one device" if known else ""
            report(done, f"iteration {state.iteration}{best}")
        if ranks.first:
            _save(config, state, learner)
            if alone:
                _save_placements(config, state, learner)
        final = {"hparam/validation": state.best_validation, "hparam/simulations": float(state.simulations)}
        curves.settings(_flat(asdict(config)), final, state.iteration + 1)  # at a step that a resumed run hides
        signal = max(ranks.gather(stop.number))  # ranks wait for each other here: the first to end closes connections
    if signal:
        kept = f"iteration {state.iteration} is saved in {Path(config.out) / FILE_NAME}"
        raise Interruption(signal, kept if over else f"{kept}; --resume goes on from there")
    report(1.0, f"validation {state.best_validation:.4f}")
    return last | final


def _seen(run: Run, before: Mapping[str, Any] | None, alone: bool) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the most devices of a training problem (0 = unknown), and the names of the graphs by their likeness, for
    "training" and "validation". Both include those of `before`, the checkpoint that the parameters come from.
    """
    devices = max(problem.num_devices for problem in run.problems.values())
    graphs: dict[str, dict[str, str]] = {}
    for part, problems in {"training": run.problems, "validation": {} if alone else run.validation}.items():
        earlier = (before or {}).get("graphs", {}).get(part, {})
        graphs[part] = dict(earlier) | {problem.graph.likeness: name for name, problem in problems.items()}
    if before is not None:
        devices = max(devices, before["devices"]) if before.get("devices") else 0
    return devices, graphs


def _controls(learner: Learner, state: TrainState, run: Run, began: float) -> dict[str, float]:
    """Return the controls and the seconds of preparation since `began`, by tag."""
    run.report(0.0, "judging the untrained policy and random placements")
    found = controls(learner, state, run.ranks)
    return found | {"seconds/preparation": run.ranks.of_first(time.perf_counter() - began)}


@contextmanager
def _finite(config: AnyTrainConfig, state: TrainState) -> Iterator[None]:
    """Check that losses, gradients and answers of the policy within it, and the parameters after it, are finite.

    Raises:
        TrainingError: one isn't; the message says what to do.
    """
    try:
        yield
        if not all(value.isfinite().all() for value in state.policy.state_dict().values()):
            raise DivergedError("the parameters are not finite")
    except DivergedError as problem:
        saved = Path(config.out) / FILE_NAME
        stays = f"{saved} keeps the last good state" if saved.exists() else "nothing was saved yet"
        raise TrainingError(
            f"stopped in iteration {state.iteration + 1}: {problem}; {stays}: train anew with a lower learning rate"
        ) from None


def _share_done(config: AnyTrainConfig, state: TrainState) -> float:
    """Return the finished share of the training, in 0..1: of the iterations alone, if they are limited, so that the
    run can be repeated; else of the simulations, if they are limited; else of the minutes.
    """
    if config.iterations is not None:
        return min(1.0, state.iteration / config.iterations)
    if config.simulations is not None:
        return min(1.0, state.simulations / config.simulations)
    return min(1.0, state.elapsed / (60.0 * (config.minutes or DEFAULT_MINUTES)))


def _validates(config: AnyTrainConfig, iteration: int) -> bool:
    """Return whether a validation follows an iteration: the curves fall fastest before the first full interval."""
    every = config.validate_every
    return iteration % every == 0 or iteration in (every // 10, every // 5, every // 2)


def _over(config: AnyTrainConfig, state: TrainState) -> bool:
    """Return whether one of the limits is reached."""
    late = config.minutes is not None and state.elapsed >= 60.0 * config.minutes
    spent = config.simulations is not None and state.simulations >= config.simulations
    return late or spent or _share_done(config, state) >= 1.0


def _check_ranks(config: AnyTrainConfig, problems: Mapping[str, PlacementProblem], ranks: Ranks) -> None:
    """Refuse more ranks than an iteration has episodes."""
    learning = config.learning
    graphs = 1 if isinstance(learning, TraversalLearningConfig) else min(learning.graphs, len(problems))
    if isinstance(learning, OneShotLearningConfig):
        episodes = {"samples": learning.samples}
    elif isinstance(learning, TraversalLearningConfig):
        episodes = {"episodes": learning.episodes}
    else:
        episodes = {"replicas": learning.replicas} if learning.reinforcement > 0.0 else {}
        episodes |= {"supervised_replicas": learning.supervised_replicas} if learning.supervised > 0.0 else {}
    for name, each in episodes.items():
        if graphs * each < ranks.size:
            raise TrainingError(
                f"{ranks.size} ranks can't share {graphs * each} episodes an iteration, of {graphs} graphs with {each} "
                f"{name} each: start fewer ranks, or raise learning.{name}"
            )


def _check_alike(config: AnyTrainConfig, state: TrainState, learner: Learner, ranks: Ranks) -> None:
    """Refuse ranks with different settings, problems or iterations: they would wait for each other for ever."""
    everyones = ranks.gather((asdict(config), fingerprint(learner.problems, learner.validation), state.iteration))
    other = [rank for rank, given in enumerate(everyones) if given != everyones[0]]
    if other:
        raise TrainingError(
            f"rank {other[0]} has other settings, graphs or another checkpoint than rank 0: "
            "start all ranks with the same arguments, and an --out that all of them see"
        )


def pretrained_config(path: str | Path, checkpoint: Mapping[str, Any], out: str) -> AnyTrainConfig:
    """Return settings for fine-tuning a checkpoint: its placer, policy and environment, and learning by `FINE_TUNING`.

    Raises:
        TrainingError: the checkpoint holds no policy that this version can load.
    """
    placer, entry = policy_of(checkpoint, path)
    with matching(path):
        config, saved = default_config(placer, out), checkpoint["config"]
        policy = type(config.policy)(**saved["policy"])
        check_loaded(policy=policy)
        check_shapes(entry.policy, policy, checkpoint["best_parameters"])
        changes: dict[str, Any] = {"policy": policy}
        changes["learning"] = replace(config.learning, **FINE_TUNING.get(config.placer, {}))
        if isinstance(config, TrainConfig):
            changes["env"] = type(config.env)(**saved["env"])
        return replace(config, **changes)


def _begin_with(state: TrainState, initial: Mapping[str, Any], config: AnyTrainConfig) -> None:
    """Load the parameters of a checkpoint that were best in validation; logits of one-shot policies are softened.

    Raises:
        TrainingError: the checkpoint holds another policy.
    """
    if initial["placer"] != config.placer:
        raise TrainingError(f"can't begin with a checkpoint of the placer {initial['placer']}, not {config.placer}")
    try:
        state.policy.load_state_dict(initial["best_parameters"])
    except RuntimeError:
        old, new = initial["config"]["policy"], asdict(config.policy)
        changed = [f"{key} was {old.get(key)}, now it is {new[key]}" for key in new if old.get(key) != new[key]]
        reason = "; ".join(changed) or "it was made by another version"
        raise TrainingError(f"can't begin with this checkpoint's parameters: {reason}") from None
    if isinstance(state.policy, OneShotPolicy) and isinstance(config, OneShotTrainConfig):
        state.policy.soften(config.learning.soften)


def _save(config: AnyTrainConfig, state: TrainState, learner: Learner, file: str = FILE_NAME) -> None:
    """Write the checkpoint to a file of the run's folder.

    Raises:
        TrainingError: it can't be written; the message says how to go on.
    """
    made_with = {
        "placer": config.placer,
        "config": asdict(config),
        "problems": fingerprint(learner.problems, learner.validation),
        "devices": state.devices,
        "graphs": state.graphs,
    }
    path = Path(config.out) / file
    try:
        save_checkpoint(made_with | state.saved(), path)
    except OSError as problem:
        stays = "the last one stays: make room, then go on with --resume" if path.exists() else "make room, train anew"
        raise TrainingError(f"{path}: can't be written ({problem.strerror}); {stays}") from None


def _save_placements(config: AnyTrainConfig, state: TrainState, learner: Learner) -> None:
    """Write the best placement met of each training problem for which one was met."""
    for index, problem in enumerate(learner.problems.values()):
        if np.isfinite(state.elite_score[index]):
            schedule = simulate(problem, state.elite[index, : problem.num_ops])
            spent = replace(PlacementResult.of(schedule), simulations=state.simulations, seconds=state.elapsed)
            save_placement(replace(spent, placer=config.placer), Path(config.out) / f"placement-{index}.json")


def _restore(state: TrainState, saved: Mapping[str, Any], config: AnyTrainConfig, learner: Learner) -> None:
    """Put a checkpoint's values into a fresh state.

    Raises:
        TrainingError: the checkpoint was made with another configuration or on other problems.
    """
    free = {"out", "minutes", "iterations", "simulations"}  # settings that may change: the folder and the limits
    if saved["placer"] != config.placer:
        raise TrainingError(f"can't resume {config.out}: it holds the placer {saved['placer']}, not {config.placer}")
    old, new = _flat(saved["config"]), _flat(asdict(config))
    changed = sorted(key for key in old.keys() | new.keys() if key not in free and old.get(key) != new.get(key))
    if changed:
        key = changed[0]
        raise TrainingError(f"can't resume {config.out}: {key} was {old.get(key)}, now it is {new.get(key)}")
    if saved["problems"] != fingerprint(learner.problems, learner.validation):
        raise TrainingError(f"can't resume {config.out}: it was trained on other graphs or clusters")
    state.restore(saved)
    for placement, (name, problem) in zip(state.elite, learner.problems.items(), strict=True):
        if not 0 <= placement.min() <= placement.max() < problem.num_devices:
            raise TrainingError(f"the best placement met of {name} has devices that the cluster doesn't have")


def fingerprint(problems: Mapping[str, PlacementProblem], validation: Mapping[str, PlacementProblem]) -> list[str]:
    """Return name and hash of each problem, as in the checkpoint's "problems": training, then validation."""
    return [f"{name} {problem.hash}" for part in (problems, validation) for name, problem in part.items()]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a nested config for tensorboard's hparams: names as "learning.lr"; what is no number becomes text."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, int | float | str | bool) else str(value)
    return flat
