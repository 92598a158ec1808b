"""Plans in JSON documents: the field "plan" of plan files and placement files.

{"layers": 14, "stages": [
    {"first_layer": 0, "replicas": [{"device": "gpu:0", "micro_batches": [0, 2]}, ...], "sharding": 0}, ...],
 "whole_modules": false, "chunks": {"gpu:0": ["0F0", "0F2", "0B0", "0B2"], ...}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from placeto.problem.cluster import Cluster
from placeto.problem.fields import flag, integer, items, listed, mapping, nested, quote, read_fields, table_of, text
from placeto.problem.step.plan import SHARDED, Chunk, Plan, PlanError

_CHUNK = re.compile(r"(\d{1,9})([FIWB])(\d{1,9})")


@dataclass(frozen=True)
class ReplicaRecord:
    """A replica of a stage."""

    device: Annotated[str, text]
    micro_batches: Annotated[list[int], items(integer(), "a micro-batch")]


@dataclass(frozen=True)
class StageRecord:
    """A stage of a plan."""

    first_layer: Annotated[int, integer()]
    replicas: Annotated[list[Mapping[str, Any]], items(nested(table_of(ReplicaRecord)), "a replica")]
    sharding: Annotated[int, integer(most=max(SHARDED))] = 0


@dataclass(frozen=True)
class PlanRecord:
    """A plan, with the names of its devices."""

    layers: Annotated[int, integer(1)]
    stages: Annotated[list[Mapping[str, Any]], items(nested(table_of(StageRecord)), "a stage")]
    whole_modules: Annotated[bool, flag] = False
    chunks: Annotated[Mapping[str, list[str]], mapping(items(text, "a chunk"))] = field(default_factory=dict)


def check_plan(value: Any, key: str, error: type[ValueError]) -> Mapping[str, Any]:
    """A check for the document of a plan; it returns the document as it is."""
    nested(table_of(PlanRecord))(value, key, error)
    return value


def plan_document(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Return a plan as a JSON document."""
    names, stages = cluster.device_names, list[dict[str, Any]]()
    for stage, first in enumerate((0, *plan.borders)):
        replicas = zip(plan.devices[stage], plan.micro_batches[stage], strict=True)
        records = [{"device": names[device], "micro_batches": list(taken)} for device, taken in replicas]
        sharding = {"sharding": plan.sharding[stage]} if plan.sharding else {}
        stages.append({"first_layer": first, "replicas": records} | sharding)
    document: dict[str, Any] = {"layers": plan.num_layers, "stages": stages}
    if plan.whole:
        document["whole_modules"] = True
    if plan.chunks:
        ran = zip(names, plan.chunks, strict=True)
        document["chunks"] = {name: ["{}{}{}".format(*chunk) for chunk in chunks] for name, chunks in ran if chunks}
    return document


def plan_of(document: Any, cluster: Cluster, error: type[ValueError]) -> Plan:
    """Return the plan that a JSON document holds.

    Raises:
        error: the document is no plan, or names a device that the cluster doesn't have; the message names the field.
    """
    record = PlanRecord(**read_fields(document, table_of(PlanRecord), error))
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

    stages = [StageRecord(**stage) for stage in record.stages]
    replicas = [[ReplicaRecord(**replica) for replica in stage.replicas] for stage in stages]
    chunks = {number_of(device): tuple(map(chunk_of, ran)) for device, ran in record.chunks.items()}
    if stages and stages[0].first_layer != 0:
        raise error(f"plan: the first stage must begin with layer 0, not {stages[0].first_layer}")
    try:
        return Plan(
            tuple(tuple(number_of(replica.device) for replica in stage) for stage in replicas),
            tuple(stage.first_layer for stage in stages[1:]),
            tuple(tuple(tuple(replica.micro_batches) for replica in stage) for stage in replicas),
            record.layers,
            record.whole_modules,
            tuple(chunks.get(device, ()) for device in range(len(index))) if chunks else (),
            tuple(stage.sharding for stage in stages) if any(stage.sharding for stage in stages) else (),
        )
    except PlanError as problem:
        raise error(f"plan: {problem}") from None
