"""Networks of the policy fitted to labelled states and judged on unseen graphs: behind `messages`.

Labels are exact values of a move, as relative changes of the makespan:

- "single": of the move alone.
- "follow": after the best few moves that follow it, found greedily: up to `FOLLOWING` times the neighbour of a moved
  group joins it, whichever leaves the shortest makespan; the shortest on the way counts (an n-step label).
- "set": of the group and the neighbours with which it exchanges most, moved together.

Legend: S states, L labelled moves a state, C problems, G groups of the largest problem, K neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import njit
from scipy.stats import spearmanr

from experiments.harness import measure_cells, problem_of
from experiments.recipes import Recipe, training_problems
from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import Instance, InstanceBatch, make_instance
from placeto.environment.mdp import reset
from placeto.evaluation.comparison import Row, code_version
from placeto.heuristics.local_search.annealing import parts_of
from placeto.heuristics.partition import group_transfers
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.policies.weights import load_weights
from placeto.pretrained import pretrained_path
from placeto.problem.flat import FlatProblems
from placeto.problem.problem import PlacementProblem
from placeto.simulator.memory import penalised_makespan, score
from placeto.simulator.threads import in_parts, one_thread
from placeto.training.checkpoint import save_checkpoint
from placeto.training.config import LearningConfig
from placeto.training.learners.iterative import annealed_placements, learning_rate
from placeto.training.learners.learner import set_learning_rate
from placeto.training.rollout import Labels
from placeto.training.updates import supervised_update

LABELS = "single", "follow", "set"
NEIGHBOURS = 3
FOLLOWING = 3
PLACEMENTS = 8  # of each problem, that annealing has met
VISITED = 0.8  # share of the groups that are marked as visited, at most
LEARNING = LearningConfig()
TRAINED_ON = (
    "cifar10:6",
    "nmt:6",
    "resnet:2",
    "rnnlm-2:2",
    "transformer_xl-2:2",
    "wavenet:2",
    "nasnet:2",
    "amoebanet:2",
    "gnmt-2:1",
    "unet:3",
    "moe:3",
)
"""FAMILY:COUNT, a part of what the package's checkpoint is trained on."""
JUDGED_BY = "cifar10", "nmt", "ptb", "inception_v3", "bert", "gnmt-2"
"""Families whose first test graph judges; the last four but one were never trained on."""
SEVERAL, MANY = ("4xv100", "8xh100"), ("2x8xh100",)
VIEWS: dict[str, tuple[tuple[str, ...], bool]] = {
    "groups": (SEVERAL, False),
    "parts of groups": (SEVERAL, True),
    "groups, 16 devices": (MANY, False),
}
"""Name -> clusters, and whether groups are split into parts."""


@dataclass(frozen=True, eq=False)
class States:
    """Where annealing has been, and what moves from there are worth."""

    batch: InstanceBatch
    index: np.ndarray  # (S,) int64, problem
    placement: np.ndarray  # (S, G) int64
    visited: np.ndarray  # (S, G) bool
    group: np.ndarray  # (S, L) int64
    device: np.ndarray  # (S, L) int64
    change: dict[str, np.ndarray]  # by label, (S, L) float32

    def of(self, rows: np.ndarray, label: str) -> tuple[torch.Tensor, Labels]:
        """Observation of some states, and their labels."""
        data = reset(self.batch, EnvConfig(), self.index[rows], self.placement[rows], self.visited[rows]).data
        slot = torch.from_numpy(self.group[rows]) + data.first[:, None]
        device, change = (torch.from_numpy(values[rows]) for values in (self.device, self.change[label]))
        return data, Labels(slot.flatten(), device.flatten(), change.flatten()).there()


@dataclass(frozen=True)
class FitConfig:
    """Of all fits of an experiment."""

    train: tuple[str, ...] = TRAINED_ON
    """FAMILY:COUNT, the first so many training graphs of a family"""
    held_out: tuple[str, ...] = JUDGED_BY
    """families whose first test graph judges"""
    each: int = 24
    """states of a problem"""
    labels: int = 24
    """moves of a state, drawn at random"""
    batch: int = 16
    """states of a gradient step"""


@dataclass(frozen=True)
class Fit:
    """What a policy is fitted to, and how."""

    view: str = "groups"
    label: str = "single"
    rounds: int = 2  # of messages
    hidden: int = 32
    steps: int = 400
    share: float = 1.0  # of the problems, the first ones
    seed: int = 0

    def __str__(self) -> str:
        text = f"{self.view} {self.label} r{self.rounds} h{self.hidden} n{self.steps} of {self.share:g} s{self.seed}"
        return text.replace(",", "").replace(" ", "-")


@cache
def states_of(view: str, config: FitConfig, kinds: Sequence[str]) -> tuple[States, States]:
    """Labelled states of the training problems of a view, and of those that judge."""
    clusters, parts = VIEWS[view]
    recipe = Recipe(graphs=config.train, presets=clusters, random_clusters=int(clusters == SEVERAL))
    held_out = [problem_of(f"{family}:test:0", cluster) for family, cluster in product(config.held_out, clusters)]
    problems = list(training_problems(recipe).values())
    problems = [problems[n] for n in np.random.default_rng(0).permutation(len(problems))]  # shares are of all families
    return (
        collect(problems, parts, config.each, config.labels, kinds, 0),
        collect(held_out, parts, config.each, config.labels, kinds, 1),
    )


def fit_rows(out: Path, config: FitConfig, fits: Sequence[Fit], kinds: Sequence[str]) -> list[Row]:
    """A row for each fit: its settings, how it was judged, and its checkpoint; kept in files of a folder.

    Made again after the code of the package or the settings of all fits have changed.
    """
    digest = sha256(f"{config} {code_version()}".encode()).hexdigest()[:8]

    def path(wanted: Fit) -> Path:
        return out / "fits" / f"{wanted}-{digest}.json"

    def row(wanted: Fit) -> Row:
        return _fit_row(path(wanted).with_suffix(".safetensors"), config, wanted, kinds)

    return list(measure_cells(fits, row, "fitting", file=path).values())


def _fit_row(path: Path, config: FitConfig, wanted: Fit, kinds: Sequence[str]) -> Row:
    states, held_out = states_of(wanted.view, config, tuple(kinds))
    with one_thread():  # several took ten times as long beside another process
        policy = fit(states, wanted, config.batch)
        judged = judge(policy, held_out, wanted.label)
    parameters = sum(value.numel() for value in policy.parameters())
    made = {"parameters": parameters, "checkpoint": save(policy, path)}
    return asdict(wanted) | asdict(judged) | made


def collect(
    problems: Sequence[PlacementProblem], parts: bool, each: int, labels: int, kinds: Sequence[str], seed: int
) -> States:
    """States of each problem, of its groups or of their parts, with moves drawn at random from those that are offered.

    Args:
        problems: C.
        parts: whether groups are split as guided search splits them.
        each: states of a problem.
        labels: L; a state that has fewer moves has fewer.
        kinds: of `LABELS`.
        seed: of the states and moves.
    """
    random, instances = np.random.default_rng(seed), []
    for problem in problems:
        groups = make_instance(problem).groups
        instances.append(make_instance(problem, parts_of(problem, groups) if parts else groups))
    batch = InstanceBatch.of(instances)
    index = np.repeat(np.arange(len(problems)), each)
    placement = np.zeros((len(index), batch.max_groups), np.int64)
    visited = np.zeros(placement.shape, bool)
    group, device = np.zeros((len(index), labels), np.int64), np.full((len(index), labels), -1, np.int64)
    for number, instance in enumerate(instances):
        own, size = slice(number * each, (number + 1) * each), instance.groups.num_groups
        met = annealed_placements(instance, PLACEMENTS, seed + number)
        placement[own, :size] = met[random.integers(len(met), size=each)]
        visited[own, :size] = random.random((each, size)) < VISITED * random.random((each, 1))
        data = reset(batch, EnvConfig(), index[own], placement[own], visited[own]).data
        for row, legal in zip(range(own.start, own.stop), data.legal.numpy().reshape(each, size, -1), strict=True):
            moves = np.argwhere(legal)
            chosen = moves[random.permutation(len(moves))[:labels]]
            group[row, : len(chosen)], device[row, : len(chosen)] = chosen.T
    near = np.full((len(instances), batch.max_groups, NEIGHBOURS), -1)
    for number, instance in enumerate(instances):
        near[number, : instance.groups.num_groups] = neighbours(instance)
    arrays = batch.problems.arrays, batch.arrays.group, index, placement, near, group, device
    before = _values(*arrays[:5], np.zeros((len(index), 1), np.int64), placement[:, :1].copy(), 0)
    change = {kind: (_values(*arrays, LABELS.index(kind)) / before - 1.0).astype(np.float32) for kind in kinds}
    return States(batch, index, placement, visited, group, device, change)


def neighbours(instance: Instance) -> np.ndarray:
    """(G, K) the groups with which each exchanges most, most first; -1 where there are no more."""
    pairs, time = group_transfers(instance.problem, instance.groups)
    both, weight = np.concatenate([pairs, pairs[:, ::-1]]), np.concatenate([time, time])
    order = np.lexsort((-weight, both[:, 0]))
    both = both[order]
    place = np.arange(len(both)) - np.searchsorted(both[:, 0], both[:, 0])
    near = np.full((instance.groups.num_groups, NEIGHBOURS), -1)
    kept = place < NEIGHBOURS
    near[both[kept, 0], place[kept]] = both[kept, 1]
    return near


def _values(*arguments: Any) -> np.ndarray:
    """(S, L) penalised makespans, in microseconds, of what `_fill_values` takes; 0 where the device is below 0."""
    group = arguments[5]
    value = np.zeros(group.shape)
    in_parts(partial(_fill_values, *arguments, value), group.size, several=True)  # type: ignore[call-arg]
    return value


@njit(nogil=True)  # not kept: what is kept here wouldn't be forgotten where the simulator changes
def _fill_values(
    flat: FlatProblems,
    group_of: np.ndarray,
    index: np.ndarray,
    placement: np.ndarray,
    near: np.ndarray,
    group: np.ndarray,
    device: np.ndarray,
    label: int,
    value: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Fill `value` (S, L): penalised makespans in microseconds, for the moves from `first` to before `last`.

    Where the device is below 0, the value stays as it is.
    """
    moves = group.shape[1]
    for k in range(first, last):
        s, m = k // moves, k % moves
        if device[s, m] >= 0:
            p = index[s]
            of = group_of[flat.op_offset[p] : flat.op_offset[p + 1]]
            value[s, m] = _value(flat, p, of, placement[s].copy(), near[p], group[s, m], device[s, m], label)


@njit
def _value(
    flat: FlatProblems,
    p: int,
    of: np.ndarray,
    row: np.ndarray,
    near: np.ndarray,
    group: int,
    device: int,
    label: int,
) -> float:
    row[group] = device
    if label == 2:
        for neighbour in near[group]:
            if neighbour >= 0:
                row[neighbour] = device
    best = _simulated(flat, p, of, row)
    moved, count = np.full(FOLLOWING + 1, group), 1
    while label == 1 and count <= FOLLOWING:
        least, which, where = np.inf, -1, 0
        for m in range(count):
            for neighbour in near[moved[m]]:
                if neighbour >= 0 and row[neighbour] != device:
                    where, row[neighbour] = row[neighbour], device
                    us = _simulated(flat, p, of, row)
                    row[neighbour] = where
                    if us < least:
                        least, which = us, neighbour
        if which < 0:
            break
        row[which], moved[count] = device, which
        count += 1
        best = min(best, least)
    return best


@njit
def _simulated(flat: FlatProblems, p: int, of: np.ndarray, row: np.ndarray) -> float:
    makespan, overflow = score(flat, p, row[of], np.inf)
    return penalised_makespan(makespan, overflow)


def fit(states: States, wanted: Fit, batch: int) -> PlacetoPolicy:
    """A policy after so many gradient steps of `batch` states each."""
    torch.manual_seed(wanted.seed)
    random = np.random.default_rng(wanted.seed)
    policy = PlacetoPolicy(PlacetoConfig(hidden=wanted.hidden, rounds=wanted.rounds))
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING.supervised_lr)
    rows = np.flatnonzero(states.index < max(1, round(wanted.share * (states.index.max() + 1))))
    for step in range(wanted.steps):
        set_learning_rate(optimizer, learning_rate(LEARNING, step / wanted.steps))
        drawn = random.choice(rows, min(batch, len(rows)), replace=False)
        supervised_update(policy, optimizer, [states.of(drawn, wanted.label)], LEARNING)
    return policy


@dataclass(frozen=True)
class Judgement:
    """How well a policy knows the moves of held-out states; means over them."""

    correlation: float  # Spearman's, of predicted and exact changes
    first: float  # gain of the move it ranks first, as a share of the best one's
    best_of_eight: float  # the same of the best of the eight it ranks first


def judge(policy: PlacetoPolicy, states: States, label: str) -> Judgement:
    """Judge by held-out states; gains are summed over them before they are compared."""
    correlations, gains = [], np.zeros(3)
    for row in range(len(states.index)):
        data, labels = states.of(np.array([row]), label)
        if len(labels.change) < 2 or labels.change.std() == 0:
            continue
        with torch.no_grad():
            predicted = policy.changes(data, labels.slot, labels.device).numpy()
        exact = labels.change.numpy()
        correlations.append(spearmanr(predicted, exact).statistic if predicted.std() > 0 else 0.0)
        gain = np.maximum(0.0, -exact)[np.argsort(predicted, kind="stable")]
        gains += gain[0], gain[:8].max(), gain.max()
    return Judgement(float(np.mean(correlations)), *(gains[:2] / max(gains[2], 1e-12)).tolist())


def save(policy: PlacetoPolicy, path: Path) -> str:
    """A checkpoint that places like the package's but for its network; returns its path."""
    shipped = pretrained_path("placeto")
    assert shipped is not None
    config = load_weights(shipped)["config"]
    config = config | {"policy": {**config["policy"], **vars(policy.config)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint({"placer": "placeto", "config": config, "best_parameters": policy.state_dict()}, path)
    return str(path)
