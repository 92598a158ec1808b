"""Plan files (format "placeto.plan/2"): one way to run a step, with its simulated time, its memory and its placement.

The way is a plan, in the field "plan", or a free placement. If it shards parameters, as FSDP does, no op has a device,
and the file has no placement. Files of version 1 have a placement and no plan.

A plan file can be given in place of a placement file: `placeto.formats.placement.load_placement` takes its placement.
"""

from __future__ import annotations

from pathlib import Path

from placeto.errors import PlacementError
from placeto.formats.placement import PLANS, PlanFile, document_of, plan_file_of
from placeto.problem.json_files import check_json_name, read_json, write_json
from placeto.problem.messages import within

__all__ = ["PlanFile", "load_plan", "save_plan"]


def load_plan(path: str | Path) -> PlanFile | None:
    """Read a plan file; return None if the file has another format.

    Raises:
        PlacementError: the file isn't JSON, or has a wrong field; the message names the file and the field.
        OSError: the file can't be read.
    """
    document = read_json(path, PlacementError)
    with within(PlacementError, path):
        return plan_file_of(document)


def save_plan(plan: PlanFile, path: str | Path) -> None:
    """Write a plan file.

    Raises:
        PlacementError: the name doesn't end in .json or .json.gz.
        OSError: the file can't be written.
    """
    check_json_name(path, PlacementError)
    document = {"format": PLANS[0], **{key: value for key, value in vars(plan).items() if value is not None}}
    if plan.placement is not None:
        document["placement"] = document_of(plan.placement)
    write_json(document | {"memory": dict(plan.memory)}, path)
