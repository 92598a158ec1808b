"""Place a model in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeto.capture.trace import capture_inference, capture_training
from placeto.placers import DEFAULT_PLACER, load_placer
from placeto.problem.cluster import Cluster
from placeto.problem.cluster_files import load_cluster
from placeto.problem.costs import CostModel, load_costs
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph_memory import DEFAULT_OPTIMIZER
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult

if TYPE_CHECKING:
    from torch import nn


def place(
    model: nn.Module | ComputationGraph,
    inputs: Sequence[Any] = (),
    *,
    cluster: Cluster | str | Path,
    loss: Callable[..., Any] | None = None,
    targets: Sequence[Any] = (),
    optimizer: str = DEFAULT_OPTIMIZER,
    placer: str | Path = DEFAULT_PLACER,
    simulations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    precision: str = "fp32",
    costs: CostModel | str | Path = "efficiency",
) -> PlacementResult:
    """Place a module's training step, or its inference where no loss is given, or a graph.

    Args:
        model: a module, which is captured as `capture_training` and `capture_inference` do, or a graph.
        inputs: positional arguments of the module.
        cluster: or its name, or its file.
        loss: ``loss(output, *targets)`` -> scalar.
        targets: further arguments of the loss.
        optimizer: whose state the training step needs memory for: sgd, momentum, adagrad, rmsprop, lion, adam, adamw.
        placer: its name, or a checkpoint.
        simulations: budget of the placer; with neither this nor seconds the placer's own, 1,000 of the default one.
        seconds: budget of the placer.
        seed: of the placer's random choices.
        precision: what the run will use, "fp32", "tf32", "bf16" or "fp16"; see `capture_training`.

        costs: a cost model, or its name or file, as `placeto.problem.costs.load_costs` takes it.

    Raises:
        CaptureError: the module can't be traced.
        LoadError, ClusterError, CostsError: no such placer, cluster or cost model.
        TypeError: no module and no graph.
    """
    if isinstance(model, ComputationGraph):
        graph = model
    elif loss is not None:
        graph = capture_training(model, inputs, loss, targets=targets, precision=precision, optimizer=optimizer)
    else:
        graph = capture_inference(model, inputs, precision=precision)
    problem = PlacementProblem(
        graph,
        cluster if isinstance(cluster, Cluster) else load_cluster(cluster),
        load_costs(costs) if isinstance(costs, str | Path) else costs,
    )
    return load_placer(placer)(problem, simulations=simulations, seconds=seconds, seed=seed)
