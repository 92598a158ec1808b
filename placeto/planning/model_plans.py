"""A model on a cluster: which way to run its training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from placeto.planning.planned_steps import Plans
from placeto.planning.variants import COUNTS, Variants
from placeto.planning.ways import DEFAULT_SIMULATIONS, plans_of
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.costs import CostModel, load_costs
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.memory_fields import DEFAULT_OPTIMIZER
from placeto.problem.step.plan import Tool

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from placeto.capture.inputs.arguments import Inputs


def plan(
    model: nn.Module,
    inputs: Inputs,
    *,
    cluster: Cluster | str | Path,
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
    optimizer: str = DEFAULT_OPTIMIZER,
    master_weights: bool = False,
    precision: str = "fp32",
    costs: CostModel | str | Path = "efficiency",
    micro_batches: Iterable[int] = COUNTS,
    headroom: int = 0,
    simulations: int = DEFAULT_SIMULATIONS,
    seed: int = 0,
    runnable_by: Tool | None = None,
    parallel: Mapping[str, Any] | None = None,
) -> Plans:
    """Compare the ways to run a model's training step on a cluster, all with the same batch.

    Args:
        model: a module, which is captured as `capture_training` does.
        inputs: arguments of the module, in order or by name; the batch is the first size of the first tensor.
        cluster: a cluster, or its name, or its file.
        loss: ``loss(output, *targets)`` -> scalar; without a loss, the module returns it.
        targets: further arguments of the loss.
        optimizer: the optimizer, whose state needs memory: sgd, momentum, adagrad, rmsprop, lion, adam, adamw.
        master_weights: whether 16-bit parameters also have a copy in float32.
        precision: what the run will use, "fp32", "tf32", "bf16" or "fp16".
        costs: a cost model, or its name or file.
        micro_batches: numbers that are tried, as far as they divide the batch. A step of more than 200,000 ops is tried
            in the largest of them, and in those in which it has fewer ops and may be faster.
        headroom: bytes of each device that stay free.
        simulations: budget of the search for a free placement, in simulations; 0 = no search.
        seed: seed of that search.
        runnable_by: "torch", "torchtitan" or "megatron" leaves only the pipelines that `placeto export` writes for this
            tool, and no free placement.
        parallel: how tensor-parallel groups shard the layers, as `capture_training` takes it; if it isn't given, and
            the model doesn't say it itself, no way has groups.

    Raises:
        CaptureError: the module can't be traced, or the batch has no samples.
        ClusterError, CostsError: there is no such cluster or cost model, or the headroom leaves a device no memory.
        PlanError: `micro_batches` is empty, or `simulations` is negative.
    """
    from placeto.capture.inputs.arguments import plain
    from placeto.capture.inputs.batch_dimension import batch_length, check_samples, first_samples
    from placeto.capture.trace import capture_training, parallel_plan

    on = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    by = costs if not isinstance(costs, str) and hasattr(costs, "op_time_us") else load_costs(costs)

    how: dict[str, Any] = {"precision": precision, "optimizer": optimizer, "master_weights": master_weights}
    how["parallel"] = parallel
    check_samples(inputs, targets)
    batch = batch_length(inputs, targets)

    def graph_of(count: int, samples: int, width: int) -> ComputationGraph:
        given = inputs, targets
        if samples < batch:
            given = first_samples((plain(inputs), plain(targets)), batch, samples)
        return capture_training(model, given[0], loss, targets=given[1], micro_batches=count, width=width, **how)

    variants = Variants(graph_of, on, by, batch, bool(parallel_plan(model, parallel)), headroom)
    return plans_of(variants, micro_batches, simulations, seed, runnable_by)
