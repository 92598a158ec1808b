"""Do plans train under torchrun as the whole model does, and in which time would they by simulation?

python -m experiments.torch_plans [--steps 20]

Each plan of a small transformer or convolutional network is placed by hand, exported, and run by
`torch.distributed.pipelining` on as many processes as it has ranks, with gloo on the CPU. Every rank trains the whole
model beside, micro-batch by micro-batch. The second table simulates whole chunks where ops could be run in any order:
plans of a larger transformer, in the best orders that are made for them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments import torch_model
from experiments.command import command
from experiments.tables import markdown
from placeto.cli.shared.graphs import capture_factory
from placeto.cli.shared.options import CaptureOptions
from placeto.formats.exports import save_torch_pipeline, torch_pipeline
from placeto.heuristics.pipelines.bounded_orders import bounded_orders
from placeto.heuristics.pipelines.plans import all_plans, make_plan
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import Plan
from placeto.simulator.schedule import Schedule, simulate

FILE = torch_model.__file__


@dataclass(frozen=True)
class Case:
    """A plan by hand."""

    devices: tuple[tuple[int, ...], ...]  # of each stage, its replicas
    order: str  # a static order, or bounded
    micro_batches: int = 4
    model: str = "net"


CASES = {
    "straight pipeline": Case(((0,), (1,)), "bounded"),
    "straight pipeline, 1f1b": Case(((0,), (1,)), "1f1b"),
    "longest path first": Case(((0,), (1,)), "priority", 6),
    "interleaved, 2 stages a rank": Case(((0,), (1,), (0,), (1,)), "bounded"),
    "V, first and last on one rank": Case(((0,), (1,), (0,)), "bounded", 6),
    "convolutions, interleaved": Case(((0,), (1,), (0,), (1,)), "bounded", 6, "convolutions"),
    "two replicas of one stage": Case(((0, 1),), "bounded", 6),
    "two replicas of two stages": Case(((0, 1), (2, 3)), "bounded"),
}

SETTINGS = ("4xv100", 8), ("4xv100", 16), ("8xv100", 16), ("2x4xv100", 8), ("2x4xv100", 16)
"""Clusters of the second table, and numbers of micro-batches."""


@dataclass(frozen=True)
class Trained:
    """What `run.py --check` has said."""

    stages: tuple[int, ...]  # which have compared their gradients, those of all replicas
    apart: float  # of all gradients of the first step, the largest difference
    losses: tuple[float, ...]  # of each step
    whole: tuple[float, ...]  # of each step of the whole model


def captured_case(case: Case) -> ComputationGraph:
    """The step of a case's model in its micro-batches."""
    return capture_factory(f"{FILE}:{case.model}", CaptureOptions(micro_batches=case.micro_batches), case.model)[0]


def placed(case: Case, graph: ComputationGraph, cluster: str = "4xv100") -> Schedule:
    """A plan of stages of equally many layers, in its order."""
    problem = PlacementProblem(graph, load_cluster(cluster))
    count, stages = len(layers(problem, False).work_us), len(case.devices)
    plan = make_plan(problem, case.devices, tuple(count * n // stages for n in range(1, stages)))
    if case.order != "bounded":
        return simulate(problem.under(case.order), plan)
    return best_order(problem, plan)


def trained(folder: Path, ranks: int, steps: int) -> Trained:
    """What an exported folder does under torchrun; ends with what that says where it fails."""
    run = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
    ]
    done = subprocess.run(
        [*run, str(folder / "run.py"), "--check", "--device", "cpu", "--steps", str(steps)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{folder}: run.py has failed:\n{done.stderr[-4000:]}")
    apart = re.findall(r"^stage (\d+): \d+ gradients, off by (\S+)", done.stdout, re.MULTILINE)
    losses = re.findall(r"^step \d+: loss (\S+), .* whole model: loss (\S+)$", done.stdout, re.MULTILINE)
    return Trained(
        tuple(sorted(int(stage) for stage, _ in apart)),
        max(float(off) for _, off in apart),
        tuple(float(mine) for mine, _ in losses),
        tuple(float(whole) for _, whole in losses),
    )


@dataclass(frozen=True)
class TorchPlans:
    """Export, run, compare."""

    steps: int = 20
    """how many steps to train"""
    layers: int = 12
    """of the model in the second table"""
    width: int = 512
    """of the model in the second table"""


def main(config: TorchPlans) -> None:
    """Both tables."""
    head = [
        "plan",
        "ranks",
        "micro-batches",
        "by ops, ms",
        "as torch runs it, ms",
        "gradients apart",
        "loss apart",
        "s",
    ]
    table = [head]
    for name, case in CASES.items():
        factory = f"{FILE}:{case.model}"
        schedule = placed(case, captured_case(case))
        made = torch_pipeline(schedule)
        with tempfile.TemporaryDirectory() as folder:
            save_torch_pipeline(made, Path(folder), factory)
            start = time.perf_counter()
            found = trained(Path(folder), made.num_ranks, config.steps)
        ops, chunks = schedule.makespan_us / 1e3, made.order.schedule.makespan_us / 1e3
        loss = abs(found.losses[-1] - found.whole[-1])
        numbers = [f"{ops:.2f}", f"{chunks:.2f}", f"{found.apart:.1e}", f"{loss:.1e}"]
        seconds = f"{time.perf_counter() - start:.0f}"
        table.append([name, str(made.num_ranks), str(case.micro_batches), *numbers, seconds])
    print(f"{markdown(table)}\n")
    print(f"Gradients of the first step and losses after {config.steps} steps of Adam, beside the whole model's.\n")
    _whole_chunks(config)


class Grid(NamedTuple):
    """A plan of stages with equally many replicas, in its best order."""

    cluster: str
    micro_batches: int
    plan: Plan
    schedule: Schedule


def grids(layers: int, width: int, settings: Sequence[tuple[str, int]] = SETTINGS) -> Iterator[Grid]:
    """All grids of a transformer with several stages, on each cluster in a number of micro-batches."""
    for cluster, count in settings:
        options = CaptureOptions(micro_batches=count, settings=(f"layers={layers}", f"width={width}", "batch=64"))
        problem = PlacementProblem(capture_factory(f"{FILE}:net", options, "net")[0], load_cluster(cluster))
        for plan in all_plans(problem):
            if len(plan.devices) > 1 and plan.even:
                yield Grid(cluster, count, plan, best_order(problem, plan))


def _whole_chunks(config: TorchPlans) -> None:
    """The step of each grid of stages x replicas in its best order, by ops and in whole chunks."""
    head = ["cluster", "micro-batches", "stages x replicas", "by ops, ms", "as torch runs it, ms", "ratio"]
    table, ratios = [head], []
    for cluster, count, plan, schedule in grids(config.layers, config.width):
        ops, chunks = schedule.makespan_us, torch_pipeline(schedule).order.schedule.makespan_us
        ratios.append(chunks / ops)
        shape = f"{len(plan.devices)} x {len(plan.devices[0])}"
        table.append([cluster, str(count), shape, f"{ops / 1e3:.1f}", f"{chunks / 1e3:.1f}", f"{ratios[-1]:.3f}"])
    print(f"{markdown(table)}\n")
    print(f"Mean ratio {np.mean(ratios):.3f} of {len(ratios)}, from {min(ratios):.3f} to {max(ratios):.3f}.")


def best_order(problem: PlacementProblem, plan: Plan) -> Schedule:
    """A plan in the best of the orders that are made for it."""
    placement = plan.placement(problem)
    found = [simulate(problem, placement, order=order, plan=plan) for order in bounded_orders(problem, placement)]
    return min(found, key=lambda schedule: schedule.makespan_us)


if __name__ == "__main__":
    command(main, TorchPlans, "torch_plans", __doc__, "Times are simulated; those in s are measured, on this machine.")
