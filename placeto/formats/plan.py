"""Plan files (format "placeto.plan/1"): a way to run a step, what it takes, and the placement that it is.

Where a placement file is read, a plan file may stand: `placeto.formats.placement.load_placement` takes its placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeto.formats.placement import PLAN, PlacementError, PlacementFile, document_of, placement_of
from placeto.problem.fields import (
    Field,
    anything,
    check_json_name,
    flag,
    integer,
    mapping,
    number,
    quote,
    read_fields,
    read_json,
    size,
    text,
    within,
    write_json,
)

if TYPE_CHECKING:
    from placeto.problem.cluster import Cluster

_FIELDS = {
    "format": Field(text),
    "kind": Field(text),
    "shape": Field(text),
    "micro_batches": Field(integer(1)),
    "order": Field(text),
    "run_by": Field(text),
    "batch": Field(integer(1)),
    "step_us": Field(number()),
    "memory": Field(mapping(size)),
    "room": Field(size),
    "fits": Field(flag),
    "cluster_hash": Field(text),
    "placement": Field(anything),
}


@dataclass(frozen=True)
class PlanFile:
    """The content of a plan file."""

    kind: str  # such as "pipeline"
    shape: str  # such as "2 stages x 4"
    micro_batches: int
    order: str  # of the ops of a device: a dispatch, "own list" or "program"
    run_by: str  # the tool whose step is simulated
    batch: int  # samples of a step
    step_us: float  # simulated, as that tool runs it
    memory: Mapping[str, int]  # bytes by category, of the device that has the least room left
    room: int  # bytes of that device
    fits: bool
    cluster_hash: str
    placement: PlacementFile

    def check_cluster(self, cluster: Cluster) -> None:
        """Refuse another cluster than the plan's.

        Raises:
            PlacementError: it is another one.
        """
        if cluster.hash != self.cluster_hash:
            theirs, ours = quote(self.cluster_hash[:12]), quote(cluster.hash[:12])
            what = f"the plan is for another cluster: its hash begins {theirs}, not {ours} as that of"
            how = f"give the plan's cluster, {quote(self.placement.cluster)}, or plan again"
            raise PlacementError(f"{what} {quote(cluster.name)}; {how}")


def load_plan(path: str | Path) -> PlanFile | None:
    """Read a plan file; None for a file of another format.

    Raises:
        PlacementError: the file is no plan; the message names file and field.
        OSError: the file can't be read.
    """
    document = read_json(path, PlacementError)
    if not isinstance(document, dict) or document.get("format") != PLAN:
        return None
    with within(PlacementError, path):
        values = read_fields(document, _FIELDS, PlacementError)
        with within(PlacementError, "placement"):
            values["placement"] = placement_of(values["placement"])
    return PlanFile(**{key: value for key, value in values.items() if key != "format"})


def save_plan(plan: PlanFile, path: str | Path) -> None:
    """Write a plan file.

    Raises:
        PlacementError: the file is not called .json or .json.gz.
        OSError: the file can't be written.
    """
    check_json_name(path, PlacementError)
    document: dict[str, Any] = {"format": PLAN, **vars(plan)}
    write_json(document | {"memory": dict(plan.memory), "placement": document_of(plan.placement)}, path)
