"""Plans in JSON documents: the field "plan" of plan files and placement files.

{"layers": 14, "stages": [
    {"first_layer": 0, "replicas": [{"device": "gpu:0", "micro_batches": [0, 2]}, ...], "sharding": 0}, ...],
 "whole_modules": false, "chunks": {"gpu:0": ["0F0", "0F2", "0B0", "0B2"], ...}}
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Required

from pydantic import Field

from placeto.errors import PlanError
from placeto.problem.checks import Count, Flag, Index, Record, Text
from placeto.problem.cluster import Cluster
from placeto.problem.messages import listed, quote
from placeto.problem.step.plan import SHARDED, Chunk, Plan

_CHUNK = re.compile(r"(\d{1,9})([FIWB])(\d{1,9})")


class ReplicaRecord(Record):
    """A replica of a stage."""

    device: Text  # name of its device
    micro_batches: list[Index]  # numbers of the micro-batches that the device takes


class StageRecord(Record, total=False):
    """A stage of a plan."""

    first_layer: Required[Index]  # number of its first layer; the first stage has 0
    replicas: Required[list[ReplicaRecord]]  # its replicas
    sharding: Annotated[int, Field(strict=True, ge=0, le=max(SHARDED))]
    """What its replicas share out, as in ZeRO: 0 nothing, 1 the optimizer's state, 2 also gradients, 3 also weights. In
    a plan of several stages, it is 0 or 1. Default: 0"""


class PlanRecord(Record, total=False):
    """A plan, with the names of its devices."""

    layers: Required[Count]  # number of layers of the model; a plan for another number of layers is refused
    stages: Required[list[StageRecord]]  # the stages, in the order of the layers
    whole_modules: Flag  # whether modules that are called more than once stay in one layer. Default: `false`
    chunks: dict[Text, list[Text]]
    """Device name -> its chunks, in the order in which it runs them. `1F2` is the forward pass of stage 1 for
    micro-batch 2. `B` is a backward pass, `I` its part for inputs and `W` its part for weights. Default: the order of
    ops decides"""
    recomputed: list[Text]
    """Paths of the modules whose activations aren't kept, but computed again for the backward pass. Default: none"""
    width: Count
    """Number of boards of the tensor-parallel group that each device of the plan is: `gpu:0..gpu:1` is a group of two.
    Default: 1, each device is a board"""


def plan_document(plan: Plan, cluster: Cluster) -> PlanRecord:
    """Return a plan as a JSON document."""
    names, stages = cluster.device_names, list[Any]()
    for stage, first in enumerate((0, *plan.borders)):
        replicas = zip(plan.devices[stage], plan.micro_batches[stage], strict=True)
        records = [{"device": names[device], "micro_batches": list(taken)} for device, taken in replicas]
        sharding = {"sharding": plan.sharding[stage]} if plan.sharding else {}
        stages.append({"first_layer": first, "replicas": records} | sharding)
    document: Any = {"layers": plan.num_layers, "stages": stages}
    if plan.whole:
        document["whole_modules"] = True
    if plan.recomputed:
        document["recomputed"] = list(plan.recomputed)
    if plan.width > 1:
        document["width"] = plan.width
    if plan.chunks:
        ran = zip(names, plan.chunks, strict=True)
        document["chunks"] = {name: ["{}{}{}".format(*chunk) for chunk in chunks] for name, chunks in ran if chunks}
    return document


def plan_of(record: PlanRecord, cluster: Cluster, error: type[ValueError]) -> Plan:
    """Return the plan of a checked record.

    Raises:
        error: the plan contradicts itself, or names a device that the cluster doesn't have; the message names it.
    """
    index = {name: number for number, name in enumerate(cluster.device_names)}

    def number_of(device: str) -> int:
        if device not in index:
            known = f"it has {listed(cluster.device_names)}"
            raise error(f"plan: device {quote(device)} is not in cluster {quote(cluster.name)}: {known}")
        return index[device]

    def chunk_of(chunk: str) -> Chunk:
        found = _CHUNK.fullmatch(chunk)
        if found is None:
            raise error(f"plan: chunk {quote(chunk)} must be a stage, F, I, W or B, and a micro-batch, such as 0F2")
        return int(found[1]), found[2], int(found[3])

    stages, ran = record["stages"], record.get("chunks", {})
    chunks = {number_of(device): tuple(map(chunk_of, names)) for device, names in ran.items()}
    if stages and stages[0]["first_layer"] != 0:
        raise error(f"plan: the first stage must begin with layer 0, not {stages[0]['first_layer']}")
    sharding = tuple(stage.get("sharding", 0) for stage in stages)
    try:
        return Plan(
            tuple(tuple(number_of(replica["device"]) for replica in stage["replicas"]) for stage in stages),
            tuple(stage["first_layer"] for stage in stages[1:]),
            tuple(tuple(tuple(replica["micro_batches"]) for replica in stage["replicas"]) for stage in stages),
            record["layers"],
            record.get("whole_modules", False),
            tuple(chunks.get(device, ()) for device in range(len(index))) if chunks else (),
            sharding if any(sharding) else (),
            tuple(record.get("recomputed", ())),
            record.get("width", 1),
        )
    except PlanError as problem:
        raise error(f"plan: {problem}") from None
