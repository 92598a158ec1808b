"""A folder from which torchrun trains a model in the pipeline of a placement.

The folder has three kinds of files. plan.json says where the model is cut, and which stages each rank has.
schedule-R.csv says in which order replica R runs its chunks. run.py, a copy of `torch_run.py`, is the program that
torchrun starts. It imports pipeline_stages.py, a copy of `torch_cut.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from placeto.problem.files import write_text
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.module_paths import around
from placeto.simulator.schedule import Schedule
from placeto.simulator.tool_steps.chunk_order import ChunkOrder
from placeto.simulator.tool_steps.pipeline_step import pipeline_step, with_least_memory

FORMAT = "placeto.torch-pipeline/1"
_PROGRAMS = {"run.py": f"{__package__}.torch_run", "pipeline_stages.py": f"{__package__}.torch_cut"}


@dataclass(frozen=True, eq=False)
class TorchPipeline:
    """A plan as torch runs it. Each replica is a process group, whose ranks are its devices in the cluster's order."""

    order: ChunkOrder
    splits: tuple[tuple[str, str], ...]  # (S-1,) the module at whose beginning or end each stage but the first begins
    modules: tuple[tuple[str, ...], ...]  # (S,) the outermost modules that run in each stage alone

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """(R, P) the devices of each replica, in the cluster's order."""
        return tuple(tuple(sorted(set(row))) for row in self.order.plan.replicas)

    @property
    def num_ranks(self) -> int:
        """The number of devices that have a stage. They are torch's ranks, in the order of the cluster."""
        return sum(map(len, self.ranks))

    @cached_property
    def step(self) -> Schedule:
        """The schedule of the step as torch runs it, which is of another graph: see `pipeline_step`."""
        return pipeline_step(self.order).schedule()

    def micro_batches(self, replica: int) -> tuple[int, ...]:
        """(M / R,) the micro-batches of a replica, in the order in which its last stage runs them forward.

        torch (2.13) keeps the losses in a list, in the order in which they are computed, and takes the loss of
        micro-batch i from place i.
        """
        plan, last = self.order.plan, len(self.order.plan.devices) - 1
        chunks, own = plan.chunks[plan.replicas[replica][last]], plan.micro_batches[0][replica]
        return tuple(of for stage, kind, of in chunks if (stage, kind) == (last, "F") and of in own)

    def rows(self, replica: int) -> list[list[str]]:
        """(P, ...) the cells of a replica's CSV file: a row a rank; micro-batches by their place in `micro_batches`."""
        number = {micro_batch: place for place, micro_batch in enumerate(self.micro_batches(replica))}
        return [
            [f"{stage}{kind}{number[micro_batch]}" for stage, kind, micro_batch in self.order.plan.chunks[device]]
            for device in self.ranks[replica]
        ]


def torch_pipeline(schedule: Schedule, alike: bool = False) -> TorchPipeline:
    """Return the pipeline of a placed training step in micro-batches.

    Args:
        schedule: the schedule of a plan's placement.
        alike: whether all replicas run their chunks in the order of the first replica.

    Raises:
        PlanError: torch can't run the placement; the message says where, why and what to do.
    """
    order = with_least_memory(schedule, alike)
    borders = order.plan.layers(schedule.problem).borders
    cuts = [borders.border[first - 1] for first in order.plan.borders]
    modules = modules_of_stages(schedule.problem.graph, borders.program, order.stage)
    return TorchPipeline(order, tuple((cut.module, cut.side) for cut in cuts), modules)


def modules_of_stages(graph: ComputationGraph, program: np.ndarray, stage: np.ndarray) -> tuple[tuple[str, ...], ...]:
    """Return the outermost modules that compute in each stage alone, (S,).

    Args:
        graph: captured.
        program: (F,) ops of the forward pass.
        stage: (N,) stage of each op.
    """
    stages: dict[str, set[int]] = {}
    for op in program.tolist():
        for module in around(graph.modules[op]):
            stages.setdefault(module, set()).add(int(stage[op]))
    alone = {module: min(numbers) for module, numbers in stages.items() if len(numbers) == 1}
    outermost = {module: number for module, number in alone.items() if module.rpartition(".")[0] not in alone}
    last = int(stage[program].max())
    return tuple(tuple(m for m, number in outermost.items() if number == s) for s in range(last + 1))


def save_torch_pipeline(
    made: TorchPipeline,
    folder: Path,
    factory: str | None = None,
    settings: Mapping[str, Any] | None = None,
    loss: str | None = None,
) -> None:
    """Write the folder, which may exist. Programs in it are kept, as they may have been changed.

    Args:
        made: the pipeline to write.
        folder: the path of the folder, which is made if it doesn't exist.
        factory: the function that makes the model, as ``file.py:function``; if none, `run.py` has to be given it.
        settings: arguments of the factory.
        loss: the name of the loss, if it isn't the factory's.

    Raises:
        OSError: a file can't be written.
    """
    plan, names = made.order.plan, made.order.schedule.problem.cluster.device_names
    used, orders, replicas = sorted(plan.used), {}, []
    for number, (ranks, devices) in enumerate(zip(made.ranks, plan.replicas, strict=True)):
        name = f"schedule-{number}.csv"
        orders[name] = "".join(f"{','.join(row)}\n" for row in made.rows(number))
        replicas.append(
            {
                "schedule": name,
                "ranks": [used.index(device) for device in ranks],
                "stages": [used.index(device) for device in devices],
                "micro_batches": list(made.micro_batches(number)),
            }
        )
    document = {
        "format": FORMAT,
        "graph": made.order.schedule.problem.graph.name,
        "factory": factory,
        "settings": dict(settings or {}),
        "loss": loss,
        "micro_batches": plan.num_micro_batches,
        "split_points": [list(split) for split in made.splits],
        "recomputed": list(plan.recomputed),
        "optimizer_sharded": [stage for stage, sharding in enumerate(plan.sharding) if sharding],
        "module_fqns_per_model_part": [list(modules) for modules in made.modules],
        "devices": [names[device] for device in used],
        "replicas": replicas,
    }
    save_folder(folder, document, orders, _PROGRAMS)


def save_folder(
    folder: Path, document: Mapping[str, Any], texts: Mapping[str, str], programs: Mapping[str, str]
) -> None:
    """Write a folder from which torchrun trains. Programs in it are kept, as they may have been changed.

    Args:
        folder: the path of the folder, which is made if it doesn't exist.
        document: the content of plan.json, without which a folder isn't complete.
        texts: file -> its content.
        programs: file -> the module that it is a copy of; copies import each other.

    Raises:
        OSError: a file can't be written.
    """
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").unlink(missing_ok=True)
    for name, text in texts.items():
        write_text(text, folder / name)
    for name, module in programs.items():
        if not (folder / name).exists():
            package, _, stem = module.rpartition(".")
            text = (files(package) / f"{stem}.py").read_text()
            for copy, original in programs.items():
                text = text.replace(f"from {original} import", f"from {copy.removesuffix('.py')} import")
            write_text(text, folder / name)
    write_text(json.dumps(document, indent=1) + "\n", folder / "plan.json")
