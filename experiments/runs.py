"""Training runs of the experiments, several at once, each done once.

A run is a directory. What is finished there is kept; what an interruption ended goes on from its checkpoint; what was
made within other limits is made again.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from placeto.checkpoint import checkpoint_path, load_checkpoint
from placeto.cluster import load_cluster
from placeto.config import AnyTrainConfig, LearningConfig, TrainConfig
from placeto.cost import PlacementProblem
from placeto.evaluate import Row, load_rows, save_rows, start_process
from placeto.graph import ComputationGraph
from placeto.grouping import group_ops
from placeto.heuristics.search import best_cheap
from placeto.load import resolve_graph
from placeto.placement import load_placement
from placeto.placer import Evaluator, PlacementResult
from placeto.progress import ProgressBar
from placeto.trainer import train

CHEAP = "best cheap heuristic"
LIMITS = ("minutes", "iterations", "simulations")


@dataclass(frozen=True)
class Run:
    """A training run; its directory is `config.out`."""

    config: AnyTrainConfig
    cluster: str
    graphs: tuple[str, ...]  # to train on, as the command line names graphs
    validation: tuple[str, ...] = ()  # to choose the parameters by; none = those it trains on
    initial: str | None = None  # checkpoint to begin with

    @property
    def finished(self) -> bool:
        """Whether its checkpoint is there, and a limit of the run reached."""
        path = checkpoint_path(Path(self.config.out))
        if not path.is_file() or self.outdated:
            return False
        saved, config = load_checkpoint(path), self.config
        used = {
            "minutes": saved["elapsed"] / 60.0,
            "iterations": saved["iteration"],
            "simulations": saved["simulations"],
        }
        limits = {name: getattr(config, name) for name in LIMITS if getattr(config, name) is not None}
        return any(used[name] >= limit for name, limit in limits.items())

    @property
    def outdated(self) -> bool:
        """Whether its checkpoint is of a run within other limits."""
        path = checkpoint_path(Path(self.config.out))
        if not path.is_file():
            return False
        before = load_checkpoint(path)["config"]
        return any(before.get(name) != getattr(self.config, name) for name in LIMITS)


@cache
def problem_of(graph: str, cluster: str) -> PlacementProblem:
    """A graph, as the command line names it, on a cluster; kept, with all that is cached for it."""
    return PlacementProblem(resolve_graph(graph)[1], load_cluster(cluster))


def train_run(run: Run) -> None:
    """Train unless it is finished.

    Raises:
        KeyboardInterrupt: a signal ended it; the next call goes on from there.
    """
    if run.finished:
        return
    out = Path(run.config.out)
    if run.outdated:
        shutil.rmtree(out)
    problems, validation = ({g: problem_of(g, run.cluster) for g in part} for part in (run.graphs, run.validation))
    initial = load_checkpoint(run.initial) if run.initial is not None else None
    resume = checkpoint_path(out).is_file() if out.is_dir() else False
    train(run.config, problems, validation or None, initial=initial, resume=resume)
    if not run.finished:
        raise KeyboardInterrupt


def train_runs(runs: Sequence[Run], processes: int | None, description: str = "training") -> None:
    """Train what is not finished, several runs at once with one thread each; 1 process = this one."""
    missing = [run for run in runs if not run.finished]
    count = min(processes or len(os.sched_getaffinity(0)), len(missing))
    with ProgressBar(description, total=len(runs)) as bar:
        bar.update(len(runs) - len(missing))
        for run in _train(missing, count):
            bar.advance(note=Path(run.config.out).name)


def _train(runs: Sequence[Run], processes: int) -> Iterator[Run]:
    if processes <= 1:
        for run in runs:
            train_run(run)
            yield run
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _start_worker) as pool:
        pending = {pool.submit(train_run, run): run for run in runs}
        try:
            while pending:
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    future.result()
                    yield pending.pop(future)
        finally:
            pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Compile the kernels first, so that the minutes of a run go to training."""
    start_process()
    ops = [{"name": name, "flops": 1e6, "outputs": [4]} for name in "abcd"]
    problem = PlacementProblem(ComputationGraph.from_ops("tiny", ops), load_cluster("2xv100"))
    learning = LearningConfig(warmup=0.5, labels=2, graphs=1, replicas=4, moves=2)
    with TemporaryDirectory() as folder:
        train(TrainConfig(folder, iterations=2, learning=learning), {"tiny": problem}, None)


def training_row(run: Run, label: str) -> Row:
    """What a finished run on a single graph met, as a row of an evaluation with history (penalised makespans)."""
    (name,) = run.graphs
    problem, out = problem_of(name, run.cluster), Path(run.config.out)
    saved, best = load_checkpoint(out), load_placement(out / "placement-0.json")
    single = problem.single_device_us
    return {
        **_head(name, run.cluster, label, run.config.seed, problem),
        "makespan_us": best.makespan_us,
        "relative": (best.makespan_us or 0.0) / single,
        "fits": best.fits,
        "simulations": saved["simulations"],
        "seconds": saved["elapsed"],
        "history": [[max(1, count), seconds, score * single] for count, seconds, score in saved["improvements"][0]],
    }


def result_row(graph: str, cluster: str, label: str, seed: int, result: PlacementResult) -> Row:
    """A placer's result as a row of an evaluation, with its history."""
    problem = problem_of(graph, cluster)
    return {
        **_head(graph, cluster, label, seed, problem),
        "makespan_us": float(result.makespan_us),
        "relative": float(result.makespan_us / problem.single_device_us),
        "fits": bool(result.fits),
        "simulations": int(result.simulations),
        "seconds": float(result.seconds),
        "history": [[int(n), float(s), float(us)] for n, s, us in result.history if math.isfinite(us)],
    }


def kept_rows(path: Path, wanted: Mapping[str, Callable[[], Row]], description: str) -> list[Row]:
    """Rows by key: those that a file has are taken from there, the others made and added to it one by one."""
    old = {row.get("key"): row for row in load_rows(path)} if path.exists() else {}
    with ProgressBar(description, total=len(wanted)) as bar:
        for key, make in wanted.items():
            if key not in old:
                old[key] = make() | {"key": key}
                save_rows(list(old.values()), path)
            bar.advance(note=key)
    return [old[key] for key in wanted]


def _head(graph: str, cluster: str, label: str, seed: int, problem: PlacementProblem) -> Row:
    where = {"graph": graph, "cluster": cluster, "placer": label, "seed": seed}
    return where | {"lower_bound_us": float(problem.lower_bound_us)}


def cheap_row(graph: str, cluster: str) -> Row:
    """The placement of the graph's best cheap heuristic, with what trying all of them takes."""
    problem = problem_of(graph, cluster)
    evaluator = Evaluator(problem, group_ops(problem))
    best_cheap(evaluator)
    return result_row(graph, cluster, CHEAP, 0, evaluator.result())
