"""A folder from which torchtitan (0.3) trains a model in the stages, replicas and order of a placement.

parallelism.py sets fields of torchtitan's configuration: the modules of each stage (``module_fqns_per_model_part``),
the numbers of pipeline ranks and replicas, and schedule.csv (``pipeline_parallel_schedule_csv``), which all replicas
run. torchtitan needs whole layers. If the plan recomputes some of them, torchtitan recomputes all
(``activation_checkpoint.mode``). Its stage s is on pipeline rank s mod P; or, with two stages a rank, the second stages
go over the ranks in the opposite order.

Legend: S stages, R replicas, P pipeline ranks, t boards of a tensor-parallel group.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placeto.errors import PlacementError
from placeto.formats.exports.layer_tools import ranks_by_stage, visible
from placeto.formats.exports.torch_pipeline import TorchPipeline, torch_pipeline
from placeto.formats.exports.whole_layers import WholeLayers, whole_layers
from placeto.problem.files import write_text
from placeto.simulator.schedule import Schedule

_PROGRAM = '''"""Layers of a placement for torchtitan (0.3). In a config_registry: return placed(config).{visible}"""

from pathlib import Path
from typing import Any

GRAPH = {graph}
DEVICES = {devices}  # of each rank
PARALLELISM = {{
    "pipeline_parallel_degree": {size},
    "data_parallel_replicate_degree": {replicas},
    "data_parallel_shard_degree": 1,{groups}
    "pipeline_parallel_schedule": "{schedule}",  # says which rank has which stage
    "pipeline_parallel_schedule_csv": str(Path(__file__).with_name("schedule.csv")),
    "pipeline_parallel_microbatch_size": {samples},
    "module_fqns_per_model_part": [
{modules}    ],
}}
TRAINING = {{"local_batch_size": {local}, "global_batch_size": {samples_of_step}}}
ACTIVATION_CHECKPOINT = {recomputed}


def placed(config: Any) -> Any:
    """The configuration, with the placement's stages."""
    sections = config.parallelism, config.training, config.activation_checkpoint
    for section, settings in zip(sections, (PARALLELISM, TRAINING, ACTIVATION_CHECKPOINT)):
        for name, value in settings.items():
            setattr(section, name, value)
    return config
'''


@dataclass(frozen=True, eq=False)
class TorchTitan:
    """A placement as torchtitan runs it."""

    layers: WholeLayers
    pipeline: TorchPipeline
    modules: tuple[tuple[str, ...], ...]  # (S,) the modules of each stage
    renamed: bool  # whether `modules` has torchtitan's names, not the model's own
    rows: tuple[tuple[str, ...], ...]  # (P, ...) cells of the CSV, such as 0F2: stage, kind, micro-batch of a replica

    @property
    def ranks(self) -> tuple[int, ...]:
        """(P * R * t,) the board of each rank."""
        return ranks_by_stage(self.layers)


def torchtitan(schedule: Schedule) -> TorchTitan:
    """Return the pipeline of whole layers of a placed training step in micro-batches.

    Raises:
        PlacementError: torchtitan can't run the placement; the message says where, why and what to do.
    """
    layers, name = whole_layers(schedule, "torchtitan"), schedule.problem.graph.name
    if len(layers.stages) == 1:
        raise PlacementError(
            f"{name}: the placement has one stage, which torchtitan runs without a plan: set its "
            f"data_parallel_replicate_degree to {len(layers.plan.replicas)}"
            + (f", and its tensor_parallel_degree to {layers.plan.width}" if layers.plan.width > 1 else "")
        )
    if why := layers.plan.refusal(layers.schedule.problem, "torchtitan"):
        raise PlacementError(f"{name}: {why}")
    pipeline = torch_pipeline(layers.schedule, alike=True)
    written, devices = pipeline.rows(0), pipeline.ranks[0]
    rows = [written[devices.index(device)] for device in layers.ranks[0]]
    is_flat = "." in layers.modules[0] and layers.modules[0].count(".") == 1
    is_flat &= all("." not in module for module in (*layers.before, *layers.behind))
    before = layers.before if is_flat else ("tok_embeddings",)
    behind = layers.behind if is_flat else ("norm", "lm_head")
    names = layers.modules if is_flat else tuple(f"layers.{number}" for number in range(len(layers.modules)))
    parts = [list(names[first:end]) for first, end in layers.stages]
    parts[0][:0], parts[-1] = before, [*parts[-1], *behind]
    return TorchTitan(layers, pipeline, tuple(map(tuple, parts)), not is_flat, tuple(tuple(row) for row in rows))


def save_torchtitan(pipeline: TorchTitan, folder: Path, batch: int | None = None) -> None:
    """Write the folder, which may exist.

    Args:
        pipeline: the pipeline to write.
        folder: the path of the folder, which is made if it doesn't exist.
        batch: samples of a step; if not given, a micro-batch has one.

    Raises:
        OSError: a file can't be written.
    """
    folder.mkdir(exist_ok=True)
    layers, plan = pipeline.layers, pipeline.layers.plan
    cluster, samples = layers.schedule.problem.boards, 1 if batch is None else batch // plan.num_micro_batches
    (folder / "parallelism.py").unlink(missing_ok=True)  # written last: a folder without it isn't complete
    write_text("".join(f"{','.join(row)}\n" for row in pipeline.rows), folder / "schedule.csv")
    text = _PROGRAM.format(
        graph=repr(layers.schedule.problem.graph.name),
        devices=repr([cluster.device_names[device] for device in pipeline.ranks]),
        visible=f" Start it with CUDA_VISIBLE_DEVICES={gpus}." if (gpus := visible(cluster, pipeline.ranks)) else "",
        size=len(layers.ranks[0]),
        replicas=len(plan.replicas),
        groups=f'\n    "tensor_parallel_degree": {plan.width},' if plan.width > 1 else "",
        schedule="ZBVZeroBubble" if plan.goes_back else "PipelineScheduleMulti",
        samples=samples,
        recomputed='{"mode": "full"}' if plan.recomputed else "{}",
        modules="".join(f"        {list(part)!r},\n" for part in pipeline.modules),
        local=samples * plan.num_micro_batches // len(plan.replicas),
        samples_of_step=samples * plan.num_micro_batches,
    )
    write_text(text, folder / "parallelism.py")
