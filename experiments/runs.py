"""Training runs of the experiments, several at once, each done once.

A run is a directory. What is finished there is kept; what an interruption ended goes on from its checkpoint; what has
other settings or graphs is made again.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.rows import problem_of, row_head
from placeto.cores import cores
from placeto.evaluation.comparison import Row, in_processes, start_process
from placeto.formats.placement import load_placement
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.progress import ProgressBar
from placeto.training.checkpoint import FILE_NAME, checkpoint_path, load_checkpoint
from placeto.training.config import AnyTrainConfig, LearningConfig, TrainConfig
from placeto.training.trainer import fingerprint, train

PRETRAINED = "the package's checkpoint"


@dataclass(frozen=True)
class Run:
    """A training run; its directory is `config.out`."""

    config: AnyTrainConfig
    cluster: str
    graphs: tuple[str, ...]  # to train on, as the command line names graphs
    validation: tuple[str, ...] = ()  # to choose the parameters by; none = those it trains on
    initial: str | None = None  # checkpoint to begin with
    others: tuple[str, ...] = ()  # clusters on which it trains as well

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
        """Whether its checkpoint is of other settings or graphs, or older than the one that it begins with."""
        if not self.checkpoint.is_file():
            return False
        saved = load_checkpoint(self.checkpoint)
        older = self.initial is not None and _changed(checkpoint_path(self.initial)) > _changed(self.checkpoint)
        expected = fingerprint(*self.problems())
        before, now = ({**config, "out": ""} for config in (saved["config"], asdict(self.config)))
        return older or before != now or saved["problems"] != expected

    def problems(self) -> tuple[dict[str, PlacementProblem], dict[str, PlacementProblem]]:
        """What it trains on, and what chooses its parameters."""
        places, costs = [("", self.cluster), *((f" on {other}", other) for other in self.others)], self.config.costs
        train, validation = (
            {f"{graph}{suffix}": problem_of(graph, cluster, costs) for suffix, cluster in places for graph in of}
            for of in (self.graphs, self.validation)
        )
        return train, validation or train


def _changed(path: Path) -> float:
    return path.stat().st_mtime


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
    initial = load_checkpoint(run.initial) if run.initial is not None else None
    resume = run.checkpoint.is_file()
    train(run.config, problems, validation if run.validation else None, initial=initial, resume=resume)
    return run.checkpoint


def train_runs(runs: Sequence[Run], processes: int | None, description: str = "training") -> None:
    """Train what is not finished, several runs at once with one thread each; 1 process = this one."""
    missing = [run for run in runs if not run.finished]
    count = min(processes or len(cores()), len(missing))
    with ProgressBar(description, total=len(runs)) as bar:
        bar.update(len(runs) - len(missing))
        here = ((run, train_run(run)) for run in missing)
        for _, path in here if count <= 1 else in_processes(train_run, missing, count, _start_worker):
            bar.advance(note=path.parent.name)


def _start_worker() -> None:
    """Compile the kernels first, so that the minutes of a run go to training."""
    start_process()
    ops = [{"name": name, "flops": 1e6, "outputs": [4]} for name in "abcd"]
    problem = PlacementProblem(ComputationGraph.from_ops("tiny", ops), load_cluster("2xv100"))
    learning = LearningConfig(reinforcement=0.5, annealed=0.0, labels=2, graphs=1, replicas=4, moves=2)
    with TemporaryDirectory() as folder:
        train(TrainConfig(folder, iterations=2, learning=learning), {"tiny": problem}, None)


def training_row(run: Run, label: str) -> Row:
    """What a finished run on a single graph met, as a row of an evaluation with history (penalised makespans)."""
    (name,) = run.graphs
    problem, out = problem_of(name, run.cluster), Path(run.config.out)
    saved, best = load_checkpoint(out), load_placement(out / "placement-0.json")
    single = problem.single_device_us
    return {
        **row_head(name, run.cluster, label, run.config.seed, problem),
        "makespan_us": best.makespan_us,
        "relative": (best.makespan_us or 0.0) / single,
        "fits": best.fits,
        "simulations": saved["simulations"],
        "seconds": saved["elapsed"],
        "history": [[max(1, count), seconds, score * single] for count, seconds, score in saved["improvements"][0]],
    }
