"""A folder from which torchrun trains a model in the pipeline that a placement is.

The folder has three kinds of files. plan.json says where the model is cut, and which stages each rank has.
schedule-R.csv says in which order replica R runs its chunks. run.py, a copy of `torch_run.py`, is the program that
torchrun starts.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from placeto.formats.exports.torch_orders import TorchOrder, torch_order
from placeto.formats.exports.torch_stages import TorchStages, torch_stages
from placeto.formats.exports.torch_step import torch_step
from placeto.problem.files import write_text
from placeto.simulator.schedule import Schedule

FORMAT = "placeto.torch-pipeline/1"


@dataclass(frozen=True, eq=False)
class TorchPipeline:
    """A placement as torch runs it."""

    stages: TorchStages
    order: TorchOrder

    @property
    def num_ranks(self) -> int:
        """Devices that have a stage; torch's ranks are these, in the order of the cluster."""
        return sum(map(len, self.stages.ranks))

    @cached_property
    def step(self) -> Schedule:
        """What the step takes as torch runs it: see `torch_step`; of another graph than the placement's."""
        return torch_step(self.order.schedule, self.stages, self.order.kinds).schedule()


def torch_pipeline(schedule: Schedule) -> TorchPipeline:
    """The pipeline that a placed training step in micro-batches is.

    Raises:
        ExportError: torch can't run it; the message says where, why and what to do.
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
    """Write the folder, which may exist. A `run.py` that is there stays, as it may have been changed.

    Args:
        made: what to write.
        folder: made where it isn't there.
        factory: the function that makes the model, as ``file.py:function``; if none, `run.py` has to be given it.
        settings: further arguments of it.
        loss: the name of the loss, if it isn't the factory's.

    Raises:
        OSError: it can't be written.
    """
    folder.mkdir(exist_ok=True)
    (folder / "plan.json").unlink(missing_ok=True)  # it comes last: what has none is not whole
    stages, names = made.stages, made.order.schedule.problem.cluster.device_names
    used = sorted(device for ranks in stages.ranks for device in ranks)
    replicas = []
    for number, (ranks, devices) in enumerate(zip(stages.ranks, stages.devices, strict=True)):
        name = f"schedule-{number}.csv"
        rows = io.StringIO()
        csv.writer(rows, lineterminator="\n").writerows(made.order.rows(stages, number))
        write_text(rows.getvalue(), folder / name)
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
