"""The steps whose numbers `experiments.golden` keeps: small models in all their plans, and parts of other experiments.

A cell is a step that is simulated in one way, and its name says which: plans/MLP/fifo/0+1|2+3 at 5 is the plan of two
stages of two devices whose second stage begins at layer 5, simulated in the dispatch `fifo`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments import gate, models_in_micro_batches, outside_sailor
from experiments.outside_amp import machines
from experiments.outside_bubbles import Bubbles, live_chunks, schedules
from experiments.pipeline_steps import PipelineStep, interleaved, simulated
from experiments.torch_model import convolutions
from experiments.torch_plans import CASES, captured_case, grids, placed
from placeto.capture.trace import capture_training
from placeto.errors import PlanError
from placeto.formats.exports import torch_pipeline
from placeto.heuristics.pipelines.plans import all_plans
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan
from placeto.simulator.result import PlacementResult
from placeto.simulator.schedule import Schedule, simulate
from placeto.simulator.tool_steps.data_parallel import data_parallel
from placeto.simulator.tool_steps.pipeline_step import in_whole_chunks
from placeto.simulator.tool_steps.replica_step import replicated

MICRO_BATCHES, BATCH = 4, 32
CLUSTER, TWO_HOSTS = "4xv100", "2x4xv100"
DISPATCHES = "fifo", "priority", "1f1b"
SEARCHES = "ViT on 4xv100", "U-net on 2xv100+2xp100", "GPT 12 on 2x4xv100"
"""Cells of `models_in_micro_batches`."""
SIMULATIONS = 300
"""Of each search."""
Cell = Mapping[str, float | str]
"""Numbers and texts by the name of the quantity."""
Cells = dict[str, Cell]


class LanguageModel(nn.Module):
    """A transformer that guesses words."""

    def __init__(self, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(512, 64), nn.Linear(64, 512, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        layers = (nn.TransformerEncoderLayer(64, 4, 128, dropout, batch_first=True) for _ in range(3))
        self.layers = nn.Sequential(*layers)

    def forward(self, words: Tensor) -> Tensor:
        """Words (B, T) -> logits (B, 512, T)."""
        return self.head(self.layers(self.embedding(words))).transpose(1, 2)


class Recurrent(nn.Module):
    """Classifies a series by the last output of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(16, 32, 2, batch_first=True), nn.Linear(32, 10)

    def forward(self, series: Tensor) -> Tensor:
        """(B, T, 16) -> (B, 10)."""
        return self.head(self.recurrent(series)[0][:, -1])


class Unrolled(nn.Module):
    """The same by a cell that is called at each step, so that plans may also cut between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.second, self.head = nn.LSTMCell(16, 32), nn.LSTMCell(32, 32), nn.Linear(32, 10)

    def forward(self, series: Tensor) -> Tensor:
        """(B, T, 16) -> (B, 10)."""
        first = second = None
        for step in series.unbind(1):
            first = self.cell(step, first)
            second = self.second(first[0], second)
        assert second is not None
        return self.head(second[0])


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def _words() -> Tensor:
    return torch.zeros(BATCH, 16, dtype=torch.long)


def _classes() -> Tensor:
    return torch.zeros(BATCH, dtype=torch.long)


class Model(NamedTuple):
    """How a model, its input and its targets are made, and what it computes in."""

    module: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    targets: Callable[[], Tensor]
    precision: str = "fp32"


MODELS = {
    "MLP": Model(_perceptron, partial(torch.zeros, BATCH, 64), _classes),
    "language model": Model(LanguageModel, _words, _words),
    "tied language model": Model(partial(LanguageModel, tied=True), _words, _words),
    "language model in bf16": Model(LanguageModel, _words, _words, "bf16"),
    "language model with dropout": Model(partial(LanguageModel, dropout=0.1), _words, _words),
    "convolutions": Model(lambda: convolutions(2)[0], partial(torch.zeros, BATCH, 3, 16, 16), _classes),
    "LSTM": Model(Recurrent, partial(torch.zeros, BATCH, 7, 16), _classes),
    "LSTM of cells": Model(Unrolled, partial(torch.zeros, BATCH, 5, 16), _classes),
}


@cache
def captured(name: str) -> ComputationGraph:
    """The training step of a model of `MODELS` in micro-batches."""
    model = MODELS[name]
    with torch.device("meta"):
        module, inputs, targets = model.module(), model.inputs(), model.targets()
    return capture_training(
        module,
        [inputs],
        nn.functional.cross_entropy,
        targets=[targets],
        name=name,
        precision=model.precision,
        micro_batches=MICRO_BATCHES,
    )


def described(plan: Plan) -> str:
    """The devices of each stage, and the layers at which stages begin: 0+1|2+3 at 5."""
    stages = "|".join("+".join(map(str, devices)) for devices in plan.devices)
    borders = f" at {' '.join(map(str, plan.borders))}" if plan.borders else ""
    return f"{stages}{borders}{' of whole modules' if plan.whole else ''}"


def simulated_cell(schedule: Schedule) -> Cell:
    """The time of a step, and the peak memory of the fullest device and of all devices together."""
    memory = {"fullest bytes": int(schedule.peak_memory.max()), "bytes": int(schedule.peak_memory.sum())}
    return {"us": schedule.makespan_us, **memory, "fits": schedule.fits}


def gate_cells(name: str) -> Iterator[tuple[str, Cell]]:
    """The makespan of a cell of the gate."""
    yield "", {"us": gate.measure(name)[1]}


def plan_cells(name: str) -> Iterator[tuple[str, Cell]]:
    """All plans of a model, in each dispatch."""
    problem = PlacementProblem(captured(name), load_cluster(CLUSTER))
    for plan in all_plans(problem):
        placement = plan.placement(problem)
        for dispatch in DISPATCHES:
            yield f"{dispatch}/{described(plan)}", simulated_cell(simulate(problem.under(dispatch), placement))


def torch_cells(name: str) -> Iterator[tuple[str, Cell]]:
    """All plans of a model as torch runs them: in the order of `priority`, and in the best order of whole chunks."""
    problem = PlacementProblem(captured(name), load_cluster(CLUSTER))
    for plan in all_plans(problem):
        schedule = simulate(problem, plan)
        result = PlacementResult.of(schedule)
        try:
            pipeline, (chunks, step) = torch_pipeline(schedule), in_whole_chunks(result)
        except PlanError as error:
            yield described(plan), {"refused": str(error)}
            continue
        best = {"best chunks us": chunks.makespan_us, "best us": step.makespan_us}
        yield described(plan), {"stages": len(pipeline.order.plan.devices), **_in_chunks(schedule), **best}


def _in_chunks(schedule: Schedule) -> Cell:
    """A placement in whole chunks, and the step as torch runs it."""
    pipeline = torch_pipeline(schedule)
    return {"chunks us": pipeline.order.schedule.makespan_us, **simulated_cell(pipeline.step)}


def replica_cells(name: str) -> Iterator[tuple[str, Cell]]:
    """Replicas of a model on one host and on two, in the stages of ZeRO, and data parallelism in closed form."""
    for cluster, devices in ((CLUSTER, (0, 1, 2, 3)), (CLUSTER, (0, 1, 0, 1)), (TWO_HOSTS, (0, 1, 4, 5))):
        problem = PlacementProblem(captured(name), load_cluster(cluster))
        for stage in (1, 2, 3):
            schedule = simulate(*replicated(problem, devices, stage))
            yield f"stage {stage} on {'+'.join(map(str, devices))} of {cluster}", simulated_cell(schedule)
    formula = data_parallel(PlacementProblem(captured(name), load_cluster(CLUSTER)))
    memory = {"fullest bytes": int(formula.peak_memory.max()), "bytes": int(formula.peak_memory.sum())}
    time = {"us": formula.most_us, "sums us": formula.all_reduce_us}
    ring = "+".join(map(str, formula.ring))
    yield f"closed form on {CLUSTER}", {**time, **memory, "fits": formula.fits, "ring": ring}


def torch_plan_cells(table: str) -> Iterator[tuple[str, Cell]]:
    """Plans by hand, and grids of stages x replicas of a smaller transformer than that of the experiment."""
    if table == "by hand":
        for name, case in CASES.items():
            schedule = placed(case, captured_case(case))
            yield name, {"ops us": schedule.makespan_us, **_in_chunks(schedule)}
        return
    for grid in grids(layers=4, width=256, settings=(("4xv100", 8), ("2x4xv100", 8))):
        name = f"{grid.micro_batches} on {grid.cluster}/{described(grid.plan)}"
        yield name, {"ops us": grid.schedule.makespan_us, **_in_chunks(grid.schedule)}


def bubble_cells(backward: str) -> Iterator[tuple[str, Cell]]:
    """Each order of ours for each pipeline of `outside_bubbles`."""
    for chunks in (1, 2):
        for devices, count in Bubbles().sizes:
            for name, schedule in schedules(devices, chunks, count, backward == "in two"):
                numbers = {"us": schedule.makespan_us, "chunks": live_chunks(schedule)}
                yield f"{devices} devices x {chunks}, {count} micro-batches, {name}", numbers


def sailor_cells(data: str) -> Iterator[tuple[str, Cell]]:
    """Each plan that Sailor measured."""
    folder = outside_sailor.OutsideSailor().data
    measured = outside_sailor.read_measured(folder)
    for plan in outside_sailor.read_plans(folder):
        result = outside_sailor.simulate_plan(plan, measured)
        times = {"us": result.step_s * 1e6, "passes us": result.passes_s * 1e6, "formula us": result.sailor_s * 1e6}
        yield plan.name, {**times, "never waits us": result.never_s * 1e6, "fullest bytes": result.memory}


def pipeline_cells(way: str) -> Iterator[tuple[str, Cell]]:
    """Steps of eight unequal layers on two hosts of four devices, one forward, one backward, or interleaved."""
    cluster, layers = machines(2), 8
    devices = cluster.num_devices
    time = np.arange(1.0, layers + 1)[:, None, None] * np.array([100.0, 200.0, 30.0]) * np.ones((1, devices, 1))
    straight = [np.arange(devices).reshape(stages, -1) for stages in (1, 2, 4, 8)]
    for grid in [np.tile(np.arange(4)[:, None], (2, 1))] if way == "interleaved" else straight:
        step = PipelineStep(
            stages=np.arange(layers).reshape(len(grid), -1).tolist(),
            devices=grid.tolist(),
            micro_batches=8,
            time_us=time,
            boundary_bytes=1_000_000,
            parameter_bytes=np.full(layers, 4_000_000),
            saved_bytes=np.full((layers, devices), 1000),
            resident_bytes=np.full(devices, 50_000),
            receive_us=np.full(devices, 5.0),
            waits=way == "waiting",
            tied_bytes=2_000_000,
            turns=interleaved(4, 2, 8) if way == "interleaved" else None,
        )
        yield f"{len(grid)} stages x {grid.shape[1]}", simulated_cell(simulated(step, cluster))


def search_cells(name: str) -> Iterator[tuple[str, Cell]]:
    """A model of `models_in_micro_batches` on a cluster: the columns of its row."""
    model, cluster = name.split(" on ")
    row = models_in_micro_batches.Row(model, cluster, SIMULATIONS, seed=0)
    columns = models_in_micro_batches.placed(row)
    yield "", {quantity if quantity == "M" else f"{quantity} us": number for quantity, number in columns.items()}


PARTS: Mapping[str, tuple[Callable[[str], Iterator[tuple[str, Cell]]], Sequence[str]]] = {
    "gate": (gate_cells, gate.CELLS),
    "plans": (plan_cells, tuple(MODELS)),
    "torch": (torch_cells, tuple(MODELS)),
    "replicas": (replica_cells, tuple(MODELS)),
    "torch_plans": (torch_plan_cells, ("by hand", "grids")),
    "outside_bubbles": (bubble_cells, ("whole", "in two")),
    "outside_sailor": (sailor_cells, ("measured",)),
    "pipeline_steps": (pipeline_cells, ("1f1b", "waiting", "interleaved")),
    "models_in_micro_batches": (search_cells, SEARCHES),
}
"""Of each part, what computes its cells, and of what."""
GROUPS = tuple(f"{part}/{subject}" for part, (_, subjects) in PARTS.items() for subject in subjects)
"""Cells are computed in these groups; their names begin with that of the group."""


def compute(group: str) -> Cells | None:
    """The cells of a group; None if the data that it reads is not there."""
    part, _, subject = group.partition("/")
    if part == "outside_sailor" and not (outside_sailor.OutsideSailor().data / "plans").exists():
        return None
    return named(group, PARTS[part][0](subject))


def named(group: str, cells: Iterable[tuple[str, Cell]]) -> Cells:
    """The cells of a group by their full names.

    Raises:
        ValueError: two cells have one name.
    """
    known: Cells = {}
    for name, cell in cells:
        full = f"{group}/{name}" if name else group
        if full in known:
            raise ValueError(f"two cells have the name {full}: let the name say in what they differ")
        known[full] = cell
    return known
