"""Plan files (format "placeto.plan/2"): one way to run a step, with its simulated time, its memory and its placement.

The way is a plan, in the field "plan", or a free placement. If it shards parameters, as FSDP does, no op has a device,
and the file has no placement. Files of version 1 have a placement and no plan.

A plan file can be given in place of a placement file: `placeto.formats.placement.load_placement` takes its placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placeto.errors import PlacementError
from placeto.formats.placement import PLANS, PlacementFile, document_of, placement_of, plan_format
from placeto.problem.checks import Count, Flag, Number, Size, Text, read_document, record_of
from placeto.problem.json_files import check_json_name, read_json, write_json
from placeto.problem.messages import quote, within
from placeto.problem.step.plan_files import PlanRecord

if TYPE_CHECKING:
    from placeto.problem.cluster import Cluster


@dataclass(frozen=True)
class PlanFile:
    """The content of a plan file."""

    kind: Text  # the way, such as "pipeline"
    shape: Text  # such as "2 stages x 4"
    micro_batches: Count  # into how many the batch is split
    order: Text  # in which a device runs its ops: a dispatch, "own list" or "program"
    run_by: Text  # the tool whose step is simulated
    batch: Count  # samples of a step
    step_us: Number  # time of a step, as the tool of `run_by` runs it
    memory: Mapping[Text, Size]
    """What the fullest device holds (the one that uses the largest share of its memory), in bytes of `weights`,
    `gradients`, `optimizer`, `activations` and `received`."""
    room: Size  # bytes of memory of that device, less what `--headroom` keeps free
    fits: Flag  # whether the step fits all devices
    cluster_hash: Text  # SHA-256 of the cluster, 64 hex digits; another cluster is refused
    plan: PlanRecord | None = None  # stages, replicas and micro-batches. Default: the way is a free placement
    placement: PlacementFile | None = None
    """A placement, whose `makespan_us` and `peak_memory` are those in Placeto's own runtime. Default: the way shards
    gradients, as FSDP does, so that no op has a device"""

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
    with within(PlacementError, path):
        if (form := plan_format(document)) is None:
            return None
        values = dict(document)
        if values.get("placement") is not None:
            with within(PlacementError, "placement"):
                values["placement"] = placement_of(values["placement"])
        file = PlanFile(**read_document(values, form, "a plan", record_of(PlanFile), PlacementError))
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
