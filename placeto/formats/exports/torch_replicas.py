"""A folder from which torchrun trains the replicas of a plan with one stage, by DDP, ZeRO or FSDP.

A replica may be a tensor-parallel group. plan.json says what each replica does. run.py, a copy of
`torch_replicas_run.py`, is the program that torchrun starts; it imports the other files, which are copies, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placeto.errors import PlanError
from placeto.formats.exports.torch_pipeline import save_folder
from placeto.formats.placement import PlanFile

FORMAT = "placeto.torch-replicas/1"
_PROGRAMS = {
    "run.py": "placeto.formats.exports.torch_replicas_run",
    "training.py": "placeto.formats.exports.torch_run",
    "pipeline_stages.py": "placeto.formats.exports.torch_cut",
    "parallel_plan.py": "placeto.plumbing.parallel_plan",
}


def replicas_of(way: PlanFile) -> dict[str, Any]:
    """Return what each replica of a way does, for plan.json: its device, and its micro-batches.

    Raises:
        PlanError: the way is none of replicas, or torch can't run it; the message says what to do.
    """
    plan = way.plan
    if plan is None or len(plan["stages"]) > 1:
        raise PlanError(f"its way, {way.kind!r}, isn't one of replicas: run it with {way.run_by}")
    (stage,), width = plan["stages"], plan.get("width", 1)
    replicas = [replica for replica in stage["replicas"] if replica["micro_batches"]]
    sharding, counts = stage.get("sharding", 0), {len(replica["micro_batches"]) for replica in replicas}
    if sharding == 1 and width > 1:
        raise PlanError(
            "torch's ZeroRedundancyOptimizer can't share out the state of parameters that a tensor-parallel group "
            "shards: take a way that shards nothing more, or gradients as well"
        )
    if sharding > 1 and len(counts) > 1:
        raise PlanError("FSDP needs as many micro-batches on each replica: take a way with equal numbers")
    return {
        "format": FORMAT,
        "width": width,
        "sharding": sharding,
        "devices": [replica["device"] for replica in replicas],
        "batch": way.batch,
        "micro_batches": [replica["micro_batches"] for replica in replicas],
        "recomputed": plan.get("recomputed", []),
    }


def save_torch_replicas(
    way: PlanFile,
    folder: Path,
    factory: str | None = None,
    settings: Mapping[str, Any] | None = None,
    loss: str | None = None,
) -> int:
    """Write the folder, which may exist, and return the number of ranks. Programs in it are kept.

    Args:
        way: a way of one stage, from a plan file.
        folder: the path of the folder, which is made if it doesn't exist.
        factory: the function that makes the model, as ``file.py:function``; if none, `run.py` has to be given it.
        settings: arguments of the factory.
        loss: the name of the loss, if it isn't the factory's.

    Raises:
        PlanError: as `replicas_of` says.
        OSError: a file can't be written.
    """
    document = replicas_of(way) | {"factory": factory, "settings": dict(settings or {}), "loss": loss}
    save_folder(folder, document, {}, _PROGRAMS)
    return len(document["devices"]) * int(document["width"])
