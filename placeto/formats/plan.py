"""Plan files (format "placeto.plan/2"): one way to run a step, with its simulated time, its memory and its placement.

The way is a plan, in the field "plan", or a free placement. If it shards parameters, as FSDP does, no op has a device,
and the file has no placement. Files of version 1 have a placement and no plan.

A plan file can be given in place of a placement file: `placeto.formats.placement.load_placement` takes its placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from placeto.formats.placement import PLANS, PlacementError, PlacementFile, document_of, placement_of
from placeto.problem.fields import (
    check_json_name,
    flag,
    integer,
    mapping,
    number,
    optional,
    quote,
    read_document,
    read_json,
    size,
    table_of,
    text,
    within,
    write_json,
)
from placeto.problem.step.plan_files import check_plan

if TYPE_CHECKING:
    from placeto.problem.cluster import Cluster


def _placement(value: Any, key: str, error: type[ValueError]) -> PlacementFile:
    with within(error, key):
        return placement_of(value)


@dataclass(frozen=True)
class PlanFile:
    """The content of a plan file."""

    kind: Annotated[str, text]  # such as "pipeline"
    shape: Annotated[str, text]  # such as "2 stages x 4"
    micro_batches: Annotated[int, integer(1)]
    order: Annotated[str, text]  # in which a device runs its ops: a dispatch, "own list" or "program"
    run_by: Annotated[str, text]  # the tool whose step is simulated
    batch: Annotated[int, integer(1)]  # number of samples in a step
    step_us: Annotated[float, number()]  # simulated, as that tool runs it
    memory: Annotated[Mapping[str, int], mapping(size)]  # bytes by category, of the fullest device
    room: Annotated[int, size]  # bytes of memory that this device has
    fits: Annotated[bool, flag]
    cluster_hash: Annotated[str, text]
    plan: Annotated[Mapping[str, Any] | None, optional(check_plan)] = None  # None for a free placement
    placement: Annotated[PlacementFile | None, optional(_placement)] = None  # without the plan; None: see above

    def check_cluster(self, cluster: Cluster) -> None:
        """Refuse a cluster other than the plan's.

        Raises:
            PlacementError: the hash of the cluster isn't the one in the plan.
        """
        if cluster.hash != self.cluster_hash:
            theirs, ours = quote(self.cluster_hash[:12]), quote(cluster.hash[:12])
            what = f"the plan is for another cluster: its hash begins with {theirs}, and with {ours} on"
            named = "" if self.placement is None else f", {quote(self.placement.cluster)}"
            raise PlacementError(f"{what} {quote(cluster.name)}; give the plan's cluster{named}, or plan again")


def load_plan(path: str | Path) -> PlanFile | None:
    """Read a plan file; return None if the file has another format.

    Raises:
        PlacementError: the file isn't JSON, or has a wrong field; the message names the file and the field.
        OSError: the file can't be read.
    """
    document = read_json(path, PlacementError)
    if not isinstance(document, dict) or (form := document.get("format")) not in PLANS:
        return None
    with within(PlacementError, path):
        file = PlanFile(**read_document(document, str(form), "a plan", table_of(PlanFile), PlacementError))
        if file.plan is None and file.placement is None:
            raise PlacementError("the file needs a plan or a placement, and has neither: plan again")
        return file


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
