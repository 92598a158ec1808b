"""Compare placers on many graphs at equal budgets, in several processes, with results that survive an interruption.

A job is one (graph, placer, seed). Results go to a file of format "placeto.evaluation/1", a row per job.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypeVar

from pydantic import Field

from placeto.errors import PlacerError
from placeto.evaluation.summary import Row, ratio
from placeto.placers import Placer, choose_placer, is_heuristic, load_placer, source_of, zero_shot
from placeto.plumbing.cores import cores
from placeto.pretrained import pretrained_path
from placeto.problem.checks import Flag, Index, Number, OpenRecord, Record, Text, checked, read_document
from placeto.problem.costs import EFFICIENCY, CostModel
from placeto.problem.files import locked
from placeto.problem.graph import ComputationGraph
from placeto.problem.json_files import read_json, write_json
from placeto.problem.messages import within
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.whole_modules import whole_modules as with_modules_whole
from placeto.simulator.single_device import best_single
from placeto.simulator.threads import set_threads
from placeto.simulator.warming import warm_up

if TYPE_CHECKING:
    from placeto.problem.cluster import Cluster

FORMAT = "placeto.evaluation/1"
SAVE_EVERY_S = 2.0
Item = TypeVar("Item")
Result = TypeVar("Result")


class Budget(Record):
    """What a placer could use."""

    simulations: Number | None  # None = no limit
    seconds: Number | None  # None = no limit


class RowRecord(OpenRecord):
    """The fields of a row that are read; rows of experiments have more fields."""

    graph: Text  # name of the graph
    cluster: Text  # name of the cluster
    placer: Text  # name of the placer
    seed: Index  # seed of the placer's random choices
    makespan_us: Number  # makespan of the best placement found
    relative: Annotated[float, Field(strict=True, ge=0.0)]
    """`makespan_us` / makespan with all ops on the best single device; infinite if that one takes no time."""
    lower_bound_us: Number  # no placement is faster
    fits: Flag  # whether no device exceeds its memory
    simulations: Number  # how many simulations the placer made
    seconds: Number  # how long it took
    costs: NotRequired[Text | None]  # name of the cost model. Default: unknown
    dispatch: NotRequired[Text | None]  # the dispatch. Default: unknown
    budget: NotRequired[Budget | None]
    """The `simulations` and `seconds` that the placer could use, each a number or null. Default: unknown"""
    key: NotRequired[Text | None]
    """Key of everything that decides the row; a row with the same key is not made again. Default: made again"""
    history: NotRequired[list[tuple[Number, Number, Number]]]
    """`[simulations, seconds, makespan_us]` for each improvement (`--curve`). Default: no curve"""


class EvaluationRecord(Record):
    """The content of an evaluation file."""

    rows: list[dict[str, Any]]  # one for each placement that was made of a graph


@dataclass(frozen=True)
class PlacerSpec:
    """A placer to compare, and its budget."""

    label: str  # its name in the table
    placer: str  # a heuristic's name, or a checkpoint's path
    simulations: int | None = None
    seconds: float | None = None

    @property
    def fingerprint(self) -> str:
        """What decides the placer's results: its name, or the content of its checkpoint or file, and its budget."""
        path = pretrained_path(self.placer) or source_of(self.placer)
        if path is None and not is_heuristic(self.placer):
            from placeto.training.checkpoint import checkpoint_path  # torch takes seconds

            path = checkpoint_path(self.placer)
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else self.placer
        return f"{content} {self.simulations} {self.seconds}"


@dataclass(frozen=True)
class Job:
    """One placement to make."""

    graph: str
    spec: PlacerSpec
    seed: int
    key: str  # digest of everything that decides the result

    @property
    def place(self) -> tuple[str, str, int]:
        """The job's place in the table of a cluster: (graph, label, seed)."""
        return self.graph, self.spec.label, self.seed


def parse_spec(text: str, checkpoint: str | Path | None, simulations: int | None, seconds: float | None) -> PlacerSpec:
    """Parse a placer of the command line: ``[label=]name-or-checkpoint[@simulations]``; ``@pass`` means no budget.

    ``@pass`` is for learned placers. The name of a learned placer stands for `checkpoint`.

    >>> parse_spec("anneal@10000", None, 1000, None)
    PlacerSpec(label='anneal@10000', placer='anneal', simulations=10000, seconds=None)

    Raises:
        PlacerError: an unknown placer, or a learned one without a checkpoint; or the text doesn't have this form, or
            asks for a pass of a placer that doesn't learn.
    """
    form = re.fullmatch(r"(?:(?P<label>[^=]+)=)?(?P<placer>[^@=]+)(?:@(?P<budget>\d+(?:e\d)?|pass))?", text.strip())
    if form is None:
        raise PlacerError(f"placer {text!r}: must be NAME, NAME@SIMULATIONS, NAME@pass or LABEL=CHECKPOINT")
    placer, budget = form["placer"], form["budget"]
    if budget is not None and budget != "pass" and float(budget) >= 2**63:
        raise PlacerError(f"placer {text!r}: the number of simulations must be below 2^63")
    if budget is not None:
        simulations, seconds = (None if budget == "pass" else int(float(budget))), None
    if checkpoint is not None and choose_placer(None, checkpoint)[0] == placer:
        placer = str(checkpoint) if Path(checkpoint).exists() else placer  # "pretrained": the placer of this name
    load_placer(placer)
    if budget == "pass" and is_heuristic(placer):
        raise PlacerError(f"placer {text!r}: only learned placers have a pass; write {text.strip()[:-5]!r}")
    return PlacerSpec(form["label"] or text.strip(), placer, simulations, seconds)


def evaluate(
    graphs: Mapping[str, ComputationGraph],
    cluster: Cluster,
    specs: Sequence[PlacerSpec],
    seeds: Sequence[int] = (0,),
    *,
    costs: CostModel = EFFICIENCY,
    out: str | Path | None = None,
    processes: int | None = None,
    history: bool = False,
    report: Callable[[int, int, str], None] | None = None,
    whole_modules: bool = False,
) -> list[Row]:
    """Run every placer on every graph with every seed.

    Args:
        graphs: name -> graph.
        cluster: the cluster to place on.
        specs: the placers, with distinct labels.
        seeds: the seeds of the placers' random choices.
        costs: how long ops take.
        out: file to keep the rows in. A row in it is not made again if its placer, graph, cluster, costs, budget and
            seed are the same, and the code too. The file is written every few seconds, atomically.
        processes: how many work at once, with one thread each; 1 works in this process; None = one for each core.
        history: keep in each row how the makespan fell with simulations and seconds.
        report: called with (jobs done, jobs in all, what was done last).
        whole_modules: all placers keep each block of a model, or else each module, on one device.

    Returns:
        Rows in the order of graphs, placers, seeds. Rows of `out` for other clusters, or that are not asked for, stay
        in the file and are not returned.

    Raises:
        PlacerError: two placers with one label, or `out` exists and holds something else, or a placer finds no
            placement that its tool can run. The rows made before are in `out`.
        PlacetoError: another process evaluates into `out`.
        PlanError: `whole_modules` is set, and a graph has no modules.
    """
    if whole_modules:
        graphs = {name: with_modules_whole(graph) for name, graph in graphs.items()}
    labels = [spec.label for spec in specs]
    if len(set(labels)) < len(labels):
        raise PlacerError(f"two placers share one label among {', '.join(labels)}; name them LABEL=PLACER")
    jobs = [
        Job(name, spec, seed, _key(name, problem, spec, seed))
        for name, problem in ((name, PlacementProblem(graph, cluster, costs).hash) for name, graph in graphs.items())
        for spec in specs
        for seed in seeds
    ]
    keys, places = {job.key for job in jobs}, {job.place for job in jobs}
    with locked(out) if out is not None else nullcontext():
        old = load_rows(out) if out is not None and Path(out).exists() else []
        done = {row["key"]: row for row in old if row.get("key") in keys and (not history or "history" in row)}
        others = [
            row
            for row in old
            if row["cluster"] != cluster.name or (row["graph"], row["placer"], row["seed"]) not in places
        ]
        missing = [job for job in jobs if job.key not in done]
        worker = _Worker({job.graph: graphs[job.graph] for job in missing}, cluster, costs, history)

        def save() -> None:
            if out is not None:
                save_rows([*others, *(done[job.key] for job in jobs if job.key in done)], out)

        saved = -math.inf  # the first row is saved at once: the next one may take hours
        try:
            for job, row in _work(missing, worker, processes):
                done[job.key] = row
                if time.monotonic() - saved > SAVE_EVERY_S:
                    save()
                    saved = time.monotonic()
                if report is not None:
                    report(len(done), len(jobs), f"{job.spec.label} on {job.graph}")
        finally:
            save()
        return [done[job.key] for job in jobs]


def load_rows(path: str | Path) -> list[Row]:
    """Return the rows of an evaluation file.

    Raises:
        PlacerError: the file holds no evaluation.
        OSError: the file can't be read.
    """
    document = read_json(path, PlacerError)
    with within(PlacerError, path):
        content = read_document(document, FORMAT, "an evaluation file", EvaluationRecord, PlacerError)
        checked(content["rows"], list[RowRecord], PlacerError, "rows")
    return content["rows"]


def save_rows(rows: Sequence[Row], path: str | Path) -> None:
    """Write an evaluation file: the old one stays until the new one is complete."""
    write_json({"format": FORMAT, "rows": list(rows)}, path)


_ROOMS = "problem", "simulator", "heuristics", "environment", "policies"


@cache
def code_version() -> str:
    """Return a hash of the code that decides the results of placers: rows that other code made are not reused."""
    digest, package = hashlib.sha256(), Path(__file__).parents[1]
    for room in _ROOMS:
        for path in sorted(package.glob(f"{room}/**/*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _key(name: str, problem_hash: str, spec: PlacerSpec, seed: int) -> str:
    """Return a digest of everything that decides the result of a job."""
    text = f"{name} {problem_hash} {spec.label} {spec.fingerprint} {seed} {code_version()}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _work(jobs: Sequence[Job], worker: _Worker, processes: int | None) -> Iterator[tuple[Job, Row]]:
    """Do the jobs, in this process or in several others; yield each job with its row when it is done."""
    count = min(processes or len(cores()), len(jobs))
    if count <= 1:
        for job in jobs:
            yield job, worker.run(job)
        return
    yield from in_processes(_run_in_worker, jobs, count, _start_worker, worker)


def in_processes(
    work: Callable[[Item], Result], items: Sequence[Item], count: int, start: Callable[..., None], *arguments: object
) -> Iterator[tuple[Item, Result]]:
    """Call `work` on items in `count` processes; yield each item with its result when it is done.

    Each process first calls `start(*arguments)`. If the generator ends early, by an error or because it is closed,
    SIGTERM ends the processes.

    Raises:
        PlacerError: one of the processes was killed.
    """
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), start, arguments)
    pending = {pool.submit(work, item): item for item in items}
    try:
        while pending:
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future.result()
    except BrokenProcessPool:
        time.sleep(1.0)  # if it was Ctrl-C that ended the workers, it is about to be raised here as well
        raise PlacerError("a worker process was killed; is there enough memory for --processes?") from None
    finally:
        for process in set(multiprocessing.active_children()) - others if pending else ():
            process.terminate()
        with suppress(OSError):  # raised if workers die at this very moment
            pool.shutdown(cancel_futures=True)


class _Worker:
    """Runs jobs in one process, and keeps what they share."""

    def __init__(
        self, graphs: Mapping[str, ComputationGraph], cluster: Cluster, costs: CostModel, history: bool
    ) -> None:
        self.graphs, self.cluster, self.costs, self.history = graphs, cluster, costs, history
        self.placers: dict[PlacerSpec, Placer] = {}

    def run(self, job: Job) -> Row:
        from placeto.errors import PlanError

        if job.spec not in self.placers:
            self.placers[job.spec] = load_placer(job.spec.placer)
        graph = self.graphs[job.graph]
        problem = PlacementProblem(graph, self.cluster, self.costs)  # made anew: grouping ops is part of the seconds
        warm_up(self.placers[job.spec], problem, job.spec.simulations, job.spec.seconds)
        budget: dict[str, Any] = {"simulations": job.spec.simulations, "seconds": job.spec.seconds}
        placer = self.placers[job.spec]
        limited = job.spec.simulations is not None or job.spec.seconds is not None
        try:
            result = placer(problem, **budget, seed=job.seed) if limited else zero_shot(placer, problem, job.seed)
        except PlanError as error:
            raise PlacerError(f"{job.spec.label} on {job.graph}: {error}; leave one of the two out") from None
        single = best_single(problem)
        row: Row = {
            "graph": job.graph,
            "cluster": self.cluster.name,
            "costs": self.costs.name,
            "dispatch": result.problem.dispatch,
            "placer": job.spec.label,
            "seed": job.seed,
            "makespan_us": float(result.makespan_us),
            "relative": ratio(float(result.makespan_us), single.makespan_us if single else problem.single_device_us),
            "single_fits": single is not None,
            "lower_bound_us": float(problem.lower_bound_us),
            "fits": bool(result.fits),
            "simulations": int(result.simulations),
            "seconds": float(result.seconds),
            "budget": budget,
            "key": job.key,
        }
        if self.history:
            points = [[int(n), float(s), float(us)] for n, s, us in result.history]
            row["history"] = [point for point in points if math.isfinite(point[2])]
        return row


_worker: _Worker | None = None  # the worker of this process, if that is one of the pool


def start_process() -> None:
    """Prepare a worker process: it uses one thread, and ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the workers at once; the parent saves what is done
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"  # read by torch when a learned placer imports it
    set_threads(1, 1)  # the main module, which this process imports first, may have imported torch


def _start_worker(worker: _Worker) -> None:
    global _worker
    start_process()
    # Pickling made the arrays writable, which for numba is another type: kernels would be compiled once more.
    graphs = {name: replace(graph) for name, graph in worker.graphs.items()}
    _worker = _Worker(graphs, replace(worker.cluster), worker.costs, worker.history)


def _end_with_parent() -> None:
    """End this process when its parent ends: a killed parent can't end its workers, which would wait forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_in_worker(job: Job) -> Row:
    assert _worker is not None
    return _worker.run(job)
