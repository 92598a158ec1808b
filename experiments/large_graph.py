"""A graph of over 50,000 ops placed op by op in one forward pass of GDP: seconds and memory of each stage.

python -m experiments.large_graph [--minutes 10] [--out runs/large_graph]

Each stage runs in a process of its own, so that its peak of memory is its own; all start with the same imports, whose
seconds don't count. The graph is captured with an empty cache. With `--minutes` a policy is trained before, on smaller
graphs unless told otherwise; without, its parameters are random. Then the placement stands beside those of cheap
placers. Run again after an interruption: stages and rows that are there are kept.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import tyro

from experiments.runs import Run, kept_rows, problem_of, result_row, train_runs
from experiments.tables import Table, machine, markdown, publish, rule
from placeto.checkpoint import checkpoint_path
from placeto.cluster import load_cluster
from placeto.config import OneShotTrainConfig, default_config
from placeto.evaluate import Row, start_process, warm_up
from placeto.load import Placer, load_placer, resolve_graph
from placeto.op_features import UnitKind
from placeto.placement import load_placement, save_result
from placeto.placer import PlacementResult
from placeto.plot import gantt_figure
from placeto.policies.gdp import GdpConfig, GdpPolicy
from placeto.policies.sampling import SamplingPlacer
from placeto.progress import ProgressBar
from placeto.simulator import simulate

GDP = "gdp"


@dataclass(frozen=True)
class LargeGraphConfig:
    """Capture, place and simulate a large graph."""

    out: Path = Path("runs/large_graph")
    """folder for the training run, the rows, the tables and the picture"""
    graph: str = "gnmt-8:test:0"
    """to place"""
    cluster: str = "8xv100"
    """to place on"""
    minutes: float = 0.0
    """of training before; 0 = a policy with random parameters"""
    train: Annotated[tuple[str, ...], tyro.conf.arg(metavar="GRAPH")] = (
        "gnmt-2:train:0",
        "gnmt-2:train:1",
        "gnmt-4:train:0",
    )
    """to train on; the graph itself may be among them"""
    warmup: float = 0.5
    """share of the training spent on imitating annealed placements of the training graphs"""
    units: UnitKind = "ops"
    """what gets a device: ops, co-located ops ("paper"), or groups"""
    seed: int = 0
    """of the policy"""
    placers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = (
        "single",
        "random",
        "expert",
        "metis",
        "heft",
        "etf",
        "m-topo",
        "m-etf",
    )
    """to compare with"""


def run_alone(stage: Callable[[], None]) -> dict[str, float]:
    """Seconds of a stage and the peak of memory, in MB, of a fresh process that does it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _start) as pool:
        return pool.submit(_measure, stage).result()


def _start() -> None:
    start_process()
    warm_up(load_placer("single"), load_cluster("2xv100"), None, None)


def _measure(stage: Callable[[], None]) -> dict[str, float]:
    began = time.perf_counter()
    stage()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB on Linux, bytes on macOS
    return {"seconds": time.perf_counter() - began, "peak_mb": peak / (1e6 if sys.platform == "darwin" else 1e3)}


def nothing() -> None:
    """Imports and compiled kernels alone."""


def capture(graph: str) -> None:
    """Capture a graph anew."""
    with TemporaryDirectory() as folder:
        os.environ["PLACETO_CACHE"] = folder
        resolve_graph(graph)


def place(graph: str, cluster: str, checkpoint: str | None, units: UnitKind, seed: int, out: Path) -> None:
    """Read the graph and place it by one forward pass; the placement goes to a file."""
    if checkpoint is None:
        torch.manual_seed(seed)
        placer: Placer = SamplingPlacer(GdpPolicy(GdpConfig(units=units)))
    else:
        placer = load_placer(checkpoint)
    problem = problem_of(graph, cluster)
    save_result(problem, placer(problem), GDP, out)


def simulate_alone(graph: str, cluster: str, placement: Path) -> None:
    """Read the graph and a placement of it, and simulate it."""
    problem = problem_of(graph, cluster)
    simulate(problem, load_placement(placement).devices(problem.graph, problem.cluster))


def training(config: LargeGraphConfig) -> Run:
    """The training before."""
    default = default_config(GDP, str(config.out / "run"))
    assert isinstance(default, OneShotTrainConfig)
    learning, policy = replace(default.learning, warmup=config.warmup), GdpConfig(units=config.units)
    trained = replace(default, learning=learning, policy=policy, minutes=config.minutes, seed=config.seed)
    return Run(trained, config.cluster, config.train)


def measure(config: LargeGraphConfig, checkpoint: str | None) -> dict[str, dict[str, float]]:
    """Each stage's seconds and peak memory; those that are known for these settings are kept."""
    placement, path = config.out / "placement.json", config.out / "stages.json"
    trained = "" if checkpoint is None else sha256(checkpoint_path(checkpoint).read_bytes()).hexdigest()
    settings = f"{config.graph} {config.cluster} {config.units} {config.seed} {trained}"
    stages: dict[str, Callable[[], None]] = {
        "imports alone": nothing,
        "capture": partial(capture, config.graph),
        "placement": partial(
            place, config.graph, config.cluster, checkpoint, config.units, config.seed, placement.resolve()
        ),
        "simulation": partial(simulate_alone, config.graph, config.cluster, placement.resolve()),
    }
    found = json.loads(path.read_text()) if path.exists() else {}
    if found.get("settings") != settings:
        found = {"settings": settings}
    resolve_graph(config.graph)  # the cache is filled, so that later stages only read it
    with ProgressBar("measuring", total=len(stages)) as bar:
        for name, stage in stages.items():
            if name not in found:
                found[name] = run_alone(stage)
                path.write_text(json.dumps(found))
            bar.advance(note=name)
    return {name: found[name] for name in stages}


def stage_table(stages: Mapping[str, Mapping[str, float]]) -> Table:
    """A line for each stage, then their sum of seconds and their largest peak."""
    lines: list[Sequence[str]] = [["stage", "s", "peak MB"], rule(3)]
    lines += [[name, f"{of['seconds']:.1f}", f"{of['peak_mb']:.0f}"] for name, of in stages.items()]
    seconds, peak = sum(of["seconds"] for of in stages.values()), max(of["peak_mb"] for of in stages.values())
    return [*lines, ["together", f"{seconds:.1f}", f"{peak:.0f}"]]


def placer_table(rows: Sequence[Row]) -> Table:
    """A line for each placer, best first."""
    expert = next((row["makespan_us"] for row in rows if row["placer"] == "expert"), None)
    lines: list[Sequence[str]] = [["placer", "ms", "/ one device", "/ expert", "fits", "s"], rule(6)]
    for row in sorted(rows, key=lambda row: row["makespan_us"]):
        to_expert = "" if expert is None else f"{row['makespan_us'] / expert:.3f}"
        times = [f"{row['makespan_us'] / 1e3:.1f}", f"{row['relative']:.3f}", to_expert]
        lines.append([row["placer"], *times, "yes" if row["fits"] else "no", f"{row['seconds']:.2f}"])
    return lines


def main(config: LargeGraphConfig) -> None:
    """Train, measure the stages, compare, print the tables and write them with the schedule's picture."""
    config.out.mkdir(parents=True, exist_ok=True)
    checkpoint = None
    if config.minutes:
        run = training(config)
        train_runs([run], 1)
        checkpoint = run.config.out
    stages = measure(config, checkpoint)
    problem = problem_of(config.graph, config.cluster)
    key = f"{config.graph} {problem.graph.hash[:12]} {config.cluster} {problem.cluster.hash[:12]}"
    wanted = {f"{name} {key}": partial(_placer_row, name, config.graph, config.cluster) for name in config.placers}
    rows = kept_rows(config.out / "rows.json", wanted, "placing")
    placed = load_placement(config.out / "placement.json")
    schedule = simulate(problem, placed.devices(problem.graph, problem.cluster))
    seconds = placed.seconds or 0.0
    result = PlacementResult(schedule.placement, schedule.makespan_us, schedule.fits, 1, seconds, ())
    rows.append(result_row(config.graph, config.cluster, GDP, config.seed, result))
    how = f"{config.minutes:g} minutes of training" if checkpoint else "random parameters"
    lines = [
        f"{config.graph} ({problem.num_ops:,} ops) on {config.cluster}, gdp over {config.units}, {how}; {machine()}.",
        markdown(stage_table(stages)),
        markdown(placer_table(rows)),
    ]
    publish(config.out, "large_graph", lines, gantt_figure(schedule, f"{config.graph} on {config.cluster}, gdp, {how}"))


def _placer_row(name: str, graph: str, cluster: str) -> Row:
    return result_row(graph, cluster, name, 0, load_placer(name)(problem_of(graph, cluster)))


if __name__ == "__main__":
    main(tyro.cli(LargeGraphConfig, prog="python -m experiments.large_graph", description=__doc__))
