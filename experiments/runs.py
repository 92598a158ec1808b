"""Training runs of the experiments, several at once, each done once.

A run is a directory. What is finished there is kept; what an interruption ended goes on from its checkpoint; what has
other settings or graphs is made again.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.harness import measure_cells, problem_of
from placeto.placers import split_size
from placeto.policies.external import find_policy
from placeto.problem.problem import PlacementProblem
from placeto.training.checkpoint import FILE_NAME, load_checkpoint
from placeto.training.config import AnyTrainConfig
from placeto.training.trainer import fingerprint, train


def graphs_of(family: str, train: int | None = None, test: int | None = None) -> dict[str, tuple[str, ...]]:
    """Graphs of a family, by their split: so many to train on, or those of the split, and the first test graphs."""
    sizes = {split: split_size(family, split) for split in ("train", "validation", "test")}
    sizes |= {"train": train or sizes["train"], "test": min(test or sizes["test"], sizes["test"])}
    return {split: tuple(f"{family}:{split}:{i}" for i in range(size)) for split, size in sizes.items()}


@dataclass(frozen=True)
class Run:
    """A training run; its directory is `config.out`."""

    config: AnyTrainConfig
    cluster: str
    graphs: tuple[str, ...]  # to train on, as the command line names graphs
    validation: tuple[str, ...] = ()  # to choose the parameters by; none = those it trains on

    def __str__(self) -> str:
        return Path(self.config.out).name

    @property
    def checkpoint(self) -> Path:
        """Where its checkpoint is, or will be."""
        return Path(self.config.out) / FILE_NAME

    @property
    def finished(self) -> bool:
        """Whether its checkpoint is there, up to date, and a limit of the run reached."""
        if not self.checkpoint.is_file() or self.outdated:
            return False
        saved, config = load_checkpoint(self.checkpoint), self.config
        used = {"minutes": saved["elapsed"] / 60, "iterations": saved["iteration"], "simulations": saved["simulations"]}
        limits = {name: getattr(config, name) for name in used}
        return any(limit is not None and used[name] >= limit for name, limit in limits.items())

    @property
    def outdated(self) -> bool:
        """Whether its checkpoint is of other settings or graphs."""
        if not self.checkpoint.is_file():
            return False
        saved = load_checkpoint(self.checkpoint)
        expected = fingerprint(*self.problems())
        before, now = ({**config, "out": ""} for config in (saved["config"], asdict(self.config)))
        return before != now or saved["problems"] != expected

    def problems(self) -> tuple[dict[str, PlacementProblem], dict[str, PlacementProblem]]:
        """What it trains on, and what chooses its parameters."""
        train, validation = (
            {graph: problem_of(graph, self.cluster, self.config.costs) for graph in graphs}
            for graphs in (self.graphs, self.validation)
        )
        return train, validation or train


def policies(run: Run) -> tuple[Any, Any]:
    """The network of a run before it was trained, and after."""
    torch.manual_seed(run.config.seed)
    untrained = find_policy(run.config.placer).make(run.config.policy).eval()
    trained = deepcopy(untrained)
    trained.load_state_dict(load_checkpoint(run.checkpoint)["best_parameters"])
    return untrained, trained


def train_run(run: Run) -> Path:
    """Train unless it is finished; returns the path of the checkpoint.

    Raises:
        KeyboardInterrupt: a signal ended it; the next call goes on from there.
    """
    if run.finished:
        return run.checkpoint
    if run.outdated:
        shutil.rmtree(run.config.out)
    problems, validation = run.problems()
    train(run.config, problems, validation if run.validation else None, resume=run.checkpoint.is_file())
    return run.checkpoint


def train_runs(runs: Sequence[Run], processes: int | None) -> None:
    """Train what is not finished, several runs at once with one thread each; 1 process = this one."""
    measure_cells([run for run in runs if not run.finished], train_run, "training", workers=processes)
