"""The training loop: roll out, loss, step, log, evaluate, save.

Legend: C training instances, K replicas, B episodes of an iteration, T moves, G groups, S starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from placeto.checkpoint import CheckpointError, capture_random, load_checkpoint, restore_random, save_checkpoint
from placeto.config import TrainConfig, check_config
from placeto.cost import PlacementProblem
from placeto.env import reset
from placeto.features import InstanceBatch, make_instance
from placeto.grouping import expand
from placeto.learning import advantages, policy_update, supervised_update
from placeto.plot import gantt_figure
from placeto.policies import POLICIES
from placeto.policies.guided import Starts, cheap_starts
from placeto.rollout import Rollout, Stopwatch, greedy_pass, rollout
from placeto.signals import StopRequest
from placeto.simulator import simulate

DEFAULT_MINUTES = 10.0


class TrainingError(ValueError):
    """A training run that can't begin; the message says why."""


@dataclass(eq=False)
class TrainState:
    """What changes while training, all of it in the checkpoint."""

    policy: torch.nn.Module
    optimizer: torch.optim.Optimizer
    torch_random: torch.Generator
    random: np.random.Generator
    elite: np.ndarray  # (C, G) int64, best placement of each training instance met so far
    elite_score: np.ndarray  # (C,) float64, its relative makespan
    iteration: int = 0
    simulations: int = 0
    elapsed: float = 0.0  # seconds
    best_validation: float = np.inf
    best_parameters: dict[str, Tensor] = field(default_factory=dict)
    history: dict[int, Tensor] = field(default_factory=dict)  # of the "steps" reward baseline, by instance


@dataclass(frozen=True, eq=False)
class Family:
    """Prepared problems: flat arrays and cheap starts."""

    names: tuple[str, ...]  # (C,)
    batch: InstanceBatch
    starts: tuple[Starts, ...]  # (C,), best first

    @classmethod
    def of(cls, problems: Mapping[str, PlacementProblem], report: Callable[[str], None]) -> Family:
        """Group the ops of each problem and place it by the cheap heuristics."""
        instances, starts = [], []
        for name, problem in problems.items():
            report(f"preparing {name}")
            instances.append(make_instance(problem))
            starts.append(cheap_starts(instances[-1]))
        return cls(tuple(problems), InstanceBatch.of(instances), tuple(starts))

    @property
    def heuristic(self) -> np.ndarray:
        """(C,) relative makespan of the best cheap heuristic."""
        return np.array([starts.score[0] for starts in self.starts])


def train(
    config: TrainConfig,
    problems: Mapping[str, PlacementProblem],
    validation: Mapping[str, PlacementProblem],
    *,
    resume: bool = False,
    report: Callable[[float, str], None] = lambda done, note: None,
) -> dict[str, float]:
    """Train a policy on some problems and choose its parameters on others.

    Writes ``checkpoint.pt`` and tensorboard events to ``config.out``. Ctrl-C and SIGTERM save first.

    Args:
        config: what to train and how.
        problems: training problems by name.
        validation: problems to choose the parameters by; none of the training problems.
        resume: go on from the checkpoint in ``config.out``. With the same `config.iterations` the end is bit-identical
            with that of an uninterrupted run on the same machine; limits in minutes depend on the clock.
        report: called with the finished share in 0..1 and a note.

    Returns:
        The last logged numbers by tensorboard tag.

    Raises:
        TrainingError: no problem to train on or to validate on, or a graph that is in both sets.
        CheckpointError: nothing to resume, or a checkpoint of another configuration.
    """
    began = time.perf_counter()
    check_config(config)
    _check(problems, validation)
    numba.get_num_threads()  # starts numba's threads, which sets the number that torch uses: only then can that be set
    torch.set_num_threads(config.threads)
    saved = load_checkpoint(config.out) if resume else None
    family = Family.of(problems, lambda note: report(0.0, note))
    held_out = Family.of(validation, lambda note: report(0.0, note))
    state = _initial_state(config, family)
    if saved is not None:
        _restore(state, saved, config, family, held_out)
    began -= state.elapsed
    Path(config.out).mkdir(parents=True, exist_ok=True)
    writer = SummaryWriter(config.out, purge_step=state.iteration + 1 if resume else None)
    last: dict[str, float] = {}
    with StopRequest() as stop:
        while not stop.requested and not _over(config, state):
            done = _share_done(config, state)
            numbers = _iterate(config, state, family, done)
            state.iteration += 1
            state.elapsed = time.perf_counter() - began
            if _over(config, state) or state.iteration % config.validate_every == 0:
                numbers |= _validate(config, state, held_out, writer)
            for tag, value in numbers.items():
                writer.add_scalar(tag, value, state.iteration)
            last |= numbers
            state.elapsed = time.perf_counter() - began
            if _over(config, state) or state.iteration % config.save_every == 0:
                _save(config, state, family, held_out)
            known = np.isfinite(state.best_validation)
            best = f", validation {state.best_validation:.4f} of one device" if known else ""
            report(done, f"iteration {state.iteration}{best}")
        _save(config, state, family, held_out)
    final = {"hparam/validation": state.best_validation, "hparam/simulations": float(state.simulations)}
    writer.add_hparams(_flat(asdict(config)), final, run_name=".", global_step=state.iteration)
    writer.close()
    report(1.0, "stopped by a signal, saved" if stop.requested else f"validation {state.best_validation:.4f}")
    return last | final


def _iterate(config: TrainConfig, state: TrainState, family: Family, done: float) -> dict[str, float]:
    """One iteration: roll out, loss, step. Returns the numbers to log."""
    learning, began, watch = config.learning, time.perf_counter(), Stopwatch()
    warming_up = done < learning.warmup
    index, placement = _choose_starts(config, state, family, same=not warming_up)
    watch.lap(None)
    env = replace(config.env, tolerance=None) if warming_up else config.env  # labels of more different placements
    begin = reset(family.batch, env, index, placement)
    watch.lap("simulation")
    labels = learning.labels if warming_up else 0
    episodes = rollout(
        state.policy,
        family.batch,
        env,
        begin,
        learning.moves,
        state.torch_random,
        temperature=learning.temperature,
        labels=labels,
        watch=watch,
    )
    _keep_elite(state, episodes)
    state.simulations += episodes.simulations
    watch.lap(None)
    moves = len(episodes.data)
    if warming_up:
        lr = learning.warmup_lr * (1.0 - 0.9 * done / learning.warmup)
        _set_lr(state.optimizer, lr)
        numbers = supervised_update(state.policy, state.optimizer, episodes, learning, state.random.permutation(moves))
    else:
        lr = learning.lr * (1.0 - (done - learning.warmup) / (1.0 - learning.warmup))
        _set_lr(state.optimizer, lr)
        returns, advantage = advantages(episodes, learning, index, state.history)
        epochs = learning.epochs if learning.algorithm == "ppo" else 1  # REINFORCE is on-policy
        orders = [state.random.permutation(moves) for _ in range(epochs)]
        numbers = policy_update(state.policy, state.optimizer, episodes, advantage, learning, orders)
        numbers["train/return"] = float(returns[0].mean())
    watch.lap("network")
    best = episodes.makespan.min(0).values.numpy()
    seconds = watch.seconds | {"other": time.perf_counter() - began - sum(watch.seconds.values())}
    return numbers | {
        "makespan/train": float(best.mean()),
        "makespan/train_to_heuristic": float((best / family.heuristic[index]).mean()),
        "placements/simulated": float(state.simulations),
        "train/learning_rate": lr,
        **{f"seconds/{part}": value for part, value in seconds.items()},
    }


def _choose_starts(config: TrainConfig, state: TrainState, family: Family, same: bool) -> tuple[np.ndarray, np.ndarray]:
    """Graphs of an iteration and where their episodes start: instance (B,) and placements (B, G).

    Half of the starts are the best cheap heuristic's, the rest other heuristics' and the best met so far, both with
    some groups moved at random. Replicas share their start if `same`.
    """
    random, learning = state.random, config.learning
    count = min(learning.graphs, len(family.names))
    chosen = random.choice(len(family.names), count, replace=False)
    rows: list[np.ndarray] = []
    for instance in chosen:
        starts = family.starts[instance]
        for replica in range(learning.replicas):
            if replica and same:
                rows.append(rows[-1])
                continue
            kind = random.random()
            if kind < 0.5:
                rows.append(starts.placement[0])
                continue
            other = starts.placement[random.integers(len(starts.placement))]
            groups, devices = family.batch.num_groups[instance], family.batch.num_devices[instance]
            row = (state.elite[instance][:groups] if kind < 0.75 else other).copy()
            kicked = random.random(groups) < random.choice([0.02, 0.05, 0.15])
            row[kicked] = random.integers(devices, size=int(kicked.sum()))
            rows.append(row)
    placement = np.zeros((len(rows), family.batch.max_groups), np.int64)
    for b, row in enumerate(rows):
        placement[b, : len(row)] = row
    return np.repeat(chosen, learning.replicas), placement


def _keep_elite(state: TrainState, episodes: Rollout) -> None:
    """Remember the best placement of each instance."""
    end = episodes.end
    for b, instance in enumerate(end.index):
        if end.best[b] < state.elite_score[instance]:
            state.elite_score[instance] = end.best[b]
            state.elite[instance] = end.best_placement[b]


def _validate(config: TrainConfig, state: TrainState, held_out: Family, writer: SummaryWriter) -> dict[str, float]:
    """A greedy pass over the validation problems from the best cheap start; keeps the best parameters."""
    index = np.arange(len(held_out.names))
    placement = np.zeros((len(index), held_out.batch.max_groups), np.int64)
    for b, starts in enumerate(held_out.starts):
        placement[b, : starts.placement.shape[1]] = starts.placement[0]
    end = greedy_pass(state.policy, held_out.batch, config.env, index, placement)
    mean = float(end.best.mean())
    if mean < state.best_validation:
        state.best_validation = mean
        state.best_parameters = {name: value.clone() for name, value in state.policy.state_dict().items()}
        instance = held_out.batch.instances[0]
        ops = expand(instance.groups, end.best_placement[0, : instance.groups.num_groups])
        figure = gantt_figure(simulate(instance.problem, ops))
        writer.add_figure("schedule/validation", figure, state.iteration)
    return {
        "makespan/validation": mean,
        "makespan/validation_to_heuristic": float((end.best / held_out.heuristic).mean()),
        "makespan/validation_best": state.best_validation,
    }


def _share_done(config: TrainConfig, state: TrainState) -> float:
    """How far training is, in 0..1: by iterations alone where they are given, so that the run can be repeated."""
    if config.iterations is not None:
        return min(1.0, state.iteration / config.iterations)
    return min(1.0, state.elapsed / (60.0 * (config.minutes or DEFAULT_MINUTES)))


def _over(config: TrainConfig, state: TrainState) -> bool:
    """Whether a limit is reached."""
    late = config.minutes is not None and state.elapsed >= 60.0 * config.minutes
    return late or _share_done(config, state) >= 1.0


def _check(problems: Mapping[str, PlacementProblem], validation: Mapping[str, PlacementProblem]) -> None:
    if not problems or not validation:
        raise TrainingError("training needs at least one graph to train on and one to validate on")
    hashes = {problem.graph.hash: name for name, problem in problems.items()}
    for name, problem in validation.items():
        if problem.graph.hash in hashes:
            raise TrainingError(f"graph {name!r} is in the validation set and, as {hashes[problem.graph.hash]!r}, "
                                "in the training set; they must be disjoint")  # fmt: skip
    lonely = [name for name, problem in {**problems, **validation}.items() if problem.num_devices < 2]
    if lonely:
        raise TrainingError(f"graph {lonely[0]!r}: there is nothing to place on a cluster of one device")


def _initial_state(config: TrainConfig, family: Family) -> TrainState:
    torch.manual_seed(config.seed)
    policy = POLICIES[config.placer](config.policy)
    elite = np.zeros((len(family.names), family.batch.max_groups), np.int64)
    for row, starts in zip(elite, family.starts, strict=True):
        row[: starts.placement.shape[1]] = starts.placement[0]
    return TrainState(
        policy=policy,
        optimizer=torch.optim.Adam(policy.parameters(), lr=config.learning.lr),
        torch_random=torch.Generator().manual_seed(config.seed),
        random=np.random.default_rng(config.seed),
        elite=elite,
        elite_score=family.heuristic.copy(),
    )


def _set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def _save(config: TrainConfig, state: TrainState, family: Family, held_out: Family) -> None:
    save_checkpoint(
        {
            "placer": config.placer,
            "config": asdict(config),
            "problems": _fingerprint(family, held_out),
            "parameters": state.policy.state_dict(),
            "best_parameters": state.best_parameters or state.policy.state_dict(),
            "best_validation": float(state.best_validation),
            "optimizer": state.optimizer.state_dict(),
            "random": capture_random([state.torch_random, state.random]),
            "elite": torch.from_numpy(state.elite),
            "elite_score": torch.from_numpy(state.elite_score),
            "history": state.history,
            "iteration": state.iteration,
            "simulations": state.simulations,
            "elapsed": state.elapsed,
        },
        Path(config.out) / "checkpoint.pt",
    )


def _restore(
    state: TrainState, saved: Mapping[str, Any], config: TrainConfig, family: Family, held_out: Family
) -> None:
    """Put a checkpoint's values into a fresh state.

    Raises:
        CheckpointError: it was made with another configuration or on other problems.
    """
    free = {"out", "minutes", "iterations"}  # where it is and how long it lasts may change
    old, new = _flat(saved["config"]), _flat(asdict(config))
    changed = sorted(key for key in old.keys() | new.keys() if key not in free and old.get(key) != new.get(key))
    if changed:
        key = changed[0]
        raise CheckpointError(f"can't resume {config.out}: {key} was {old.get(key)}, now it is {new.get(key)}")
    if saved["problems"] != _fingerprint(family, held_out):
        raise CheckpointError(f"can't resume {config.out}: it was trained on other graphs or clusters")
    state.policy.load_state_dict(saved["parameters"])
    state.optimizer.load_state_dict(saved["optimizer"])
    restore_random(saved["random"], [state.torch_random, state.random])
    state.elite, state.elite_score = saved["elite"].numpy().copy(), saved["elite_score"].numpy().copy()
    state.best_validation = saved["best_validation"]
    if np.isfinite(state.best_validation):  # else these are only the latest parameters
        state.best_parameters = dict(saved["best_parameters"])
    state.history = dict(saved["history"])
    state.iteration, state.simulations = saved["iteration"], saved["simulations"]
    state.elapsed = saved["elapsed"]


def _fingerprint(*families: Family) -> list[str]:
    """Name, graph and cluster of every problem."""
    return [
        f"{name} {instance.problem.graph.hash} {instance.problem.cluster.hash}"
        for family in families
        for name, instance in zip(family.names, family.batch.instances, strict=True)
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested config -> "learning.lr": value, as tensorboard's hparams wants it."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value if isinstance(value, int | float | str | bool) else str(value)
    return flat
