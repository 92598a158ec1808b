"""The stages and replicas of a plan, as `torch.distributed.pipelining` runs them.

torch (2.13) cuts a model before or after a call of a module, sends between neighbouring stages only, gives the model's
inputs to the first stage and takes the output from the last one. `placeto.problem.step.borders` says where that is
possible. A plan that torch can't run is refused here.

Legend: N ops, S stages, R replicas, M micro-batches, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeto.formats.exports.units import ExportError
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.labels import NO_MICRO_BATCH
from placeto.problem.graph.module_paths import around
from placeto.problem.step.borders import never_cut
from placeto.problem.step.forward_pass import before_loss
from placeto.problem.step.plan import Plan
from placeto.simulator.schedule import Schedule

NO_PLAN = "the placement has no plan: it is a free placement of ops, or its file is older: place with --placer"
"""Why a free placement can't be exported as a pipeline; the name of a placer follows."""


@dataclass(frozen=True, eq=False)
class TorchStages:
    """S stages of contiguous modules on R replicas."""

    plan: Plan
    stage: np.ndarray  # (N,) int64, stage of each op; -1 for parameters, sums of gradients and the optimizer
    devices: tuple[tuple[int, ...], ...]  # (R, S) where each replica has each stage; a device may have several
    micro_batches: tuple[tuple[int, ...], ...]  # (R, M / R) those of each replica, in order
    splits: tuple[tuple[str, str], ...]  # (S-1,) the module at whose beginning or end each stage but the first begins
    modules: tuple[tuple[str, ...], ...]  # (S,) the outermost modules that run in each stage alone

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """(R, P) the devices of each replica, in the cluster's order: the ranks of its process group."""
        return tuple(tuple(sorted(set(row))) for row in self.devices)


def torch_stages(schedule: Schedule) -> TorchStages:
    """Return the stages of the plan of a placed training step.

    An op of the forward pass is in the stage between whose cuts it stands in the program; all other ops are in the
    stage of their layer.

    Raises:
        ExportError: torch can't run the plan, or there is none; the message says where and why.
    """
    problem, plan, graph = schedule.problem, schedule.plan, schedule.problem.graph
    if plan is None:
        raise ExportError(f"{graph.name}: {never_cut(graph) or f'{NO_PLAN} torch-pipeline'}")
    if why := plan.refusal(problem):
        raise ExportError(f"{graph.name}: {why}")
    layers = plan.layers(problem)
    cuts = [layers.borders.border[first - 1] for first in plan.borders]
    places = [cut.place for cut in cuts]
    stage = np.where(graph.micro_batches == NO_MICRO_BATCH, -1, layers.stage(plan.borders))
    forward = before_loss(graph)
    for micro_batch in range(plan.num_micro_batches):
        program = np.flatnonzero(forward & (graph.micro_batches == micro_batch))
        stage[program] = np.searchsorted(places, np.arange(len(program)), side="right")
    return TorchStages(
        plan,
        stage,
        tuple(zip(*plan.devices, strict=True)),
        plan.micro_batches[0],
        tuple((cut.module, cut.side) for cut in cuts),
        modules_of_stages(graph, layers.borders.program, stage),
    )


def modules_of_stages(graph: ComputationGraph, program: np.ndarray, stage: np.ndarray) -> tuple[tuple[str, ...], ...]:
    """Return the outermost modules that compute in each stage alone, (S,).

    Args:
        graph: captured.
        program: (F,) ops of the forward pass.
        stage: (N,) stage of each op.
    """
    stages: dict[str, set[int]] = {}
    for op in program.tolist():
        for module in around(graph.modules[op]):
            stages.setdefault(module, set()).add(int(stage[op]))
    alone = {module: min(numbers) for module, numbers in stages.items() if len(numbers) == 1}
    outermost = {module: number for module, number in alone.items() if module.rpartition(".")[0] not in alone}
    last = int(stage[program].max())
    return tuple(tuple(m for m, number in outermost.items() if number == s) for s in range(last + 1))
