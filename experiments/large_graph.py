"""A graph of over 50,000 ops captured, placed by GDP and simulated: seconds and memory of each stage.

python -m experiments.large_graph [--simulations 1600] [--out runs/large_graph]

A policy is trained first, on the graph itself unless others are given, from scratch and without an example to imitate.
Each stage runs in a process of its own, so that its peak of memory is its own; all start with the same imports, whose
seconds don't count. The graph is captured with an empty cache. The placements stand beside those of cheap placers. Then
one forward pass places the graph op by op, and a smaller one, with several lengths of segments: what memory it takes
depends on nothing but the graph's size and the segments'. Run again after an interruption: what is there is kept.
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

from experiments.command import command
from experiments.runs import Run, kept_rows, place_key, problem_of, result_row, train_runs
from experiments.tables import Table, machine, markdown, publish, rule
from placeto.evaluation.comparison import Row, start_process
from placeto.formats.gantt import gantt_figure
from placeto.formats.placement import load_placement, save_placement
from placeto.placers import Placer, load_placer, resolve_graph, warm_up, zero_shot
from placeto.policies.one_shot.gdp import GdpConfig, GdpPolicy
from placeto.policies.one_shot.inputs import UnitKind, make_input
from placeto.policies.one_shot.sampling import SamplingPlacer
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.progress import ProgressBar
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.schedule import simulate
from placeto.training.checkpoint import checkpoint_path, load_checkpoint
from placeto.training.config import OneShotTrainConfig, default_config

GDP = "gdp"
BEST_MET = "gdp, best met in training"
Stages = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class LargeGraphConfig:
    """Capture, place and simulate a large graph."""

    out: Path = Path("runs/large_graph")
    """folder for the training run, the rows, the tables and the picture"""
    graph: str = "gnmt-8:test:0"
    """to place"""
    cluster: str = "8xv100"
    """to place on"""
    simulations: int = 1600
    """placements of training before; 0 = a policy with random parameters"""
    train: Annotated[tuple[str, ...], tyro.conf.arg(metavar="GRAPH")] = ()
    """to train on; the graph itself if none is given"""
    units: UnitKind = "groups"
    """what gets a device: groups, co-located ops ("paper"), or ops"""
    samples: int = 16
    """placements of each training graph of an iteration"""
    entropy: float = 0.02
    """weight of the entropy bonus in training, falling to zero"""
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
    smaller: str = "gnmt-4:train:0"
    """another graph to place op by op"""
    segments: tuple[int, ...] = (64, 128, 512)
    """lengths of segments to place op by op with"""


def run_alone(stage: Callable[[], None]) -> dict[str, float]:
    """Seconds of a stage, elapsed and of CPU time; peak memory of a fresh process that does it, what it adds; MB."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _start) as pool:
        return pool.submit(_measure, stage).result()


def _start() -> None:
    start_process()
    tiny = ComputationGraph.from_ops("tiny", [{"name": "a"}])
    warm_up(load_placer("single"), PlacementProblem(tiny, load_cluster("2xv100")), None, None)


def _measure(stage: Callable[[], None]) -> dict[str, float]:
    before, peaks = _peak_mb(), Path("/proc/self/clear_refs")
    if peaks.exists():  # Linux: the peak becomes what is in memory now; elsewhere less is seen to be added
        peaks.write_text("5")
    start, began, cpu = _peak_mb(), time.perf_counter(), time.process_time()
    stage()
    peak, spent = _peak_mb(), {"seconds": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}
    return spent | {"peak_mb": max(before, peak), "added_mb": peak - start}


def _peak_mb() -> float:
    """The peak of memory; on Linux what getrusage says is at least what the parent had."""
    status = Path("/proc/self/status")
    if status.exists():
        return float(status.read_text().partition("VmHWM:")[2].split()[0]) / 1e3  # kB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


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
    save_placement(placer(problem), out)


def simulate_alone(graph: str, cluster: str, placement: Path) -> None:
    """Read the graph and a placement of it, and simulate it."""
    problem = problem_of(graph, cluster)
    simulate(problem, load_placement(placement).devices(problem.graph, problem.cluster))


def place_op_by_op(graph: str, cluster: str, segment: int | None) -> None:
    """Read the graph and place it op by op: one forward pass of a policy with random parameters; None = no pass."""
    torch.manual_seed(0)
    units = make_input(problem_of(graph, cluster), "ops")
    if segment is not None:
        GdpPolicy(GdpConfig(units="ops", segment=segment)).sample(units, 1, None)


def training(config: LargeGraphConfig) -> Run:
    """The training before."""
    default = default_config(GDP, str(config.out / "run"))
    assert isinstance(default, OneShotTrainConfig)
    learning = replace(default.learning, samples=config.samples, entropy=config.entropy)
    policy = GdpConfig(units=config.units)
    limits = {"simulations": config.simulations, "seed": config.seed, "save_every": 20}
    trained = replace(default, learning=learning, policy=policy, **limits)  # type: ignore[arg-type]
    return Run(trained, config.cluster, config.train or (config.graph,))


def kept_stages(path: Path, settings: str, stages: Mapping[str, Callable[[], None]]) -> Stages:
    """Each stage's seconds and peak memory; those that a file has for these settings are taken from there."""
    found = json.loads(path.read_text()) if path.exists() else {}
    if found.get("settings") != settings:
        found = {"settings": settings}
    with ProgressBar("measuring", total=len(stages)) as bar:
        for name, stage in stages.items():
            if name not in found:
                found[name] = run_alone(stage)
                path.write_text(json.dumps(found))
            bar.advance(note=name)
    return {name: found[name] for name in stages}


def measure(config: LargeGraphConfig, checkpoint: str | None) -> Stages:
    """The stages from a model to a simulated placement."""
    placement = (config.out / "placement.json").resolve()
    trained = "" if checkpoint is None else sha256(checkpoint_path(checkpoint).read_bytes()).hexdigest()
    stages: dict[str, Callable[[], None]] = {
        "imports alone": nothing,
        "capture": partial(capture, config.graph),
        "placement": partial(place, config.graph, config.cluster, checkpoint, config.units, config.seed, placement),
        "simulation": partial(simulate_alone, config.graph, config.cluster, placement),
    }
    settings = f"{config.graph} {config.cluster} {config.units} {config.seed} {trained}"
    return kept_stages(config.out / "stages.json", settings, stages)


def measure_passes(config: LargeGraphConfig) -> Stages:
    """Forward passes op by op, by graph and length of segments; None = the graph is only read."""
    passes = {
        f"{graph} {segment}": partial(place_op_by_op, graph, config.cluster, segment)
        for graph in (config.smaller, config.graph)
        for segment in (None, *config.segments)
    }
    return kept_stages(config.out / "passes.json", config.cluster, passes)


def pass_table(config: LargeGraphConfig, passes: Stages) -> Table:
    """A line for each graph and length of segments: what the pass takes beyond reading the graph."""
    lines: list[Sequence[str]] = [["graph", "units", "reading, s", "MB", "segment", "pass, s", "MB"], rule(7)]
    for graph in (config.smaller, config.graph):
        units = make_input(problem_of(graph, config.cluster), "ops").num_units
        read = passes[f"{graph} None"]
        for segment in config.segments:
            of = passes[f"{graph} {segment}"]
            more = [f"{of[key] - read[key]:{form}}" for key, form in (("seconds", ".1f"), ("added_mb", ".0f"))]
            first = [f"{read['seconds']:.1f}", f"{read['added_mb']:.0f}"]
            lines.append([graph, f"{units:,}", *first, f"{segment}", *more])
    return lines


def stage_table(stages: Stages) -> Table:
    """A line for each stage, then their sums of seconds and their largest peak."""
    lines: list[Sequence[str]] = [["stage", "s", "CPU s", "peak MB"], rule(4)]
    sums = {key: sum(of[key] for of in stages.values()) for key in ("seconds", "cpu_s")}
    together = sums | {"peak_mb": max(of["peak_mb"] for of in stages.values())}
    for name, of in (*stages.items(), ("together", together)):
        lines.append([name, f"{of['seconds']:.1f}", f"{of['cpu_s']:.1f}", f"{of['peak_mb']:.0f}"])
    return lines


def placer_table(rows: Sequence[Row]) -> Table:
    """A line for each placer, best first."""
    expert = next((row["makespan_us"] for row in rows if row["placer"] == "expert"), None)
    lines: list[Sequence[str]] = [["placer", "ms", "/ one device", "/ expert", "fits", "placements", "s"], rule(7)]
    for row in sorted(rows, key=lambda row: row["makespan_us"]):
        to_expert = "" if expert is None else f"{row['makespan_us'] / expert:.3f}"
        times = [f"{row['makespan_us'] / 1e3:.1f}", f"{row['relative']:.3f}", to_expert]
        spent = [f"{row['simulations']:,}", f"{row['seconds']:.2f}"]
        lines.append([row["placer"], *times, "yes" if row["fits"] else "no", *spent])
    return lines


def met_in_training(run: Run, graph: str) -> list[Row]:
    """The best placement of a graph met in a finished training run, if it was among those trained on."""
    if graph not in run.graphs:
        return []
    saved = load_checkpoint(run.checkpoint)
    row = _row_of(run, graph, run.checkpoint.parent / f"placement-{run.graphs.index(graph)}.json", BEST_MET)
    return [row | {"simulations": saved["simulations"], "seconds": saved["elapsed"]}]


def _row_of(run: Run, graph: str, placement: Path, label: str) -> Row:
    problem, placed = problem_of(graph, run.cluster), load_placement(placement)
    schedule = simulate(problem, placed.devices(problem.graph, problem.cluster))
    counts = placed.simulations or 0, placed.seconds or 0.0
    result = PlacementResult(schedule.placement, schedule.makespan_us, schedule.fits, *counts, (), problem)
    return result_row(graph, run.cluster, label, run.config.seed, result)


def main(config: LargeGraphConfig) -> None:
    """Train, measure the stages, compare, print the tables and write them with the schedule's picture."""
    config.out.mkdir(parents=True, exist_ok=True)
    resolve_graph(config.graph)  # the cache is filled, so that later stages only read it
    run, checkpoint = training(config), None
    if config.simulations:
        train_runs([run], 1)
        checkpoint = run.config.out
    stages = measure(config, checkpoint)
    problem = problem_of(config.graph, config.cluster)
    key = place_key(config.graph, config.cluster)
    wanted = {f"{name} {key}": partial(_placer_row, name, config.graph, config.cluster) for name in config.placers}
    rows = kept_rows(config.out / "rows.json", wanted, "placing")
    placement = config.out / "placement.json"
    rows.append(_row_of(run, config.graph, placement, GDP))
    how = "random parameters"
    if checkpoint is not None:
        rows += met_in_training(run, config.graph)
        saved = load_checkpoint(checkpoint)
        spent = f"{saved['simulations']:,} placements in {saved['elapsed']:.0f} s"
        how = f"trained on {', '.join(run.graphs)} with {spent}"
    passes = pass_table(config, measure_passes(config))
    lines = [
        f"{config.graph} ({problem.num_ops:,} ops) on {config.cluster}, gdp over {config.units}, {how}; {machine()}.",
        markdown(stage_table(stages)),
        markdown(placer_table(rows)),
        "One forward pass op by op, with random parameters: seconds and memory beyond those of reading the graph.",
        markdown(passes),
    ]
    schedule = simulate(problem, load_placement(placement).devices(problem.graph, problem.cluster))
    publish(config.out, "large_graph", lines, gantt_figure(schedule, f"{config.graph} on {config.cluster}, gdp"))


def _placer_row(name: str, graph: str, cluster: str) -> Row:
    return result_row(graph, cluster, name, 0, zero_shot(load_placer(name), problem_of(graph, cluster)))


if __name__ == "__main__":
    command(main, LargeGraphConfig, "large_graph", __doc__)
