"""A folder from which torchrun trains a model in the pipeline of a placement.

The folder has three kinds of files. plan.json says where the model is cut, and which stages each rank has.
schedule-R.csv says in which order replica R runs its chunks. run.py, a copy of `torch_run.py`, is the program that
torchrun starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from placeto.formats.exports.torch_orders import TorchOrder, torch_order
from placeto.formats.exports.torch_stages import TorchStages, torch_stages
from placeto.problem.files import write_text
from placeto.simulator.pipeline_step import pipeline_step
from placeto.simulator.schedule import Schedule

FORMAT = "placeto.torch-pipeline/1"


@dataclass(frozen=True, eq=False)
class TorchPipeline:
    """A placement as torch runs it."""

    stages: TorchStages
    order: TorchOrder

    @property
    def num_ranks(self) -> int:
        """The number of devices that have a stage. They are torch's ranks, in the order of the cluster."""
        return sum(map(len, self.stages.ranks))

    @cached_property
    def step(self) -> Schedule:
        """The schedule of the step as torch runs it, which is of another graph: see `pipeline_step`."""
        return pipeline_step(self.order.schedule, self.stages.stage, self.stages.devices, self.order.kinds).schedule()


def torch_pipeline(schedule: Schedule) -> TorchPipeline:
    """Return the pipeline of a placed training step in micro-batches.

    Raises:
        ExportError: torch can't run the placement; the message says where, why and what to do.
    """
    stages = torch_stages(schedule)
    return TorchPipeline(stages, torch_order(schedule, stages))


def save_torch_pipeline(
    made: TorchPipeline,
    folder: Path,
    factory: str | None = None,
    settings: Mapping[str, Any] | None = None,
    loss: str | None = None,
) -> None:
    """Write the folder, which may exist. A `run.py` in it is kept, as it may have been changed.

    Args:
        made: the pipeline to write.
        folder: the path of the folder, which is made if it doesn't exist.
        factory: the function that makes the model, as ``file.py:function``; if none, `run.py` has to be given it.
        settings: arguments of the factory.
        loss: the name of the loss, if it isn't the factory's.

    Raises:
        OSError: a file can't be written.
    """
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").unlink(missing_ok=True)  # written last: a folder without it isn't complete
    stages, names = made.stages, made.order.schedule.problem.cluster.device_names
    used = sorted(device for ranks in stages.ranks for device in ranks)
    replicas = []
    for number, (ranks, devices) in enumerate(zip(stages.ranks, stages.devices, strict=True)):
        name = f"schedule-{number}.csv"
        write_text("".join(f"{','.join(row)}\n" for row in made.order.rows(stages, number)), folder / name)
        replicas.append(
            {
                "schedule": name,
                "ranks": [used.index(device) for device in ranks],
                "stages": [used.index(device) for device in devices],
                "micro_batches": list(made.order.micro_batches(stages, number)),
            }
        )
    plan = {
        "format": FORMAT,
        "graph": made.order.schedule.problem.graph.name,
        "factory": factory,
        "settings": dict(settings or {}),
        "loss": loss,
        "micro_batches": sum(map(len, stages.micro_batches)),
        "split_points": [list(split) for split in stages.splits],
        "module_fqns_per_model_part": [list(modules) for modules in stages.modules],
        "devices": [names[device] for device in used],
        "replicas": replicas,
    }
    if not (folder / "run.py").exists():
        write_text(Path(__file__).with_name("torch_run.py").read_text(), folder / "run.py")
    write_text(json.dumps(plan, indent=1) + "\n", folder / "plan.json")
