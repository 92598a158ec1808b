"""The layers that each device has in a plan, for tools that take a number of layers for each device.

These tools call the blocks of a model its layers (`placeto.problem.step.blocks`). What is computed before the blocks,
such as an embedding, goes to the first stage. What is computed behind them, such as a norm and a head, goes to the
last. If a border of the plan is inside a block, the block goes to the stage that has more of its forward pass.

Legend: N ops, L blocks, S stages, R replicas, M micro-batches, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from placeto.formats.exports.torch_stages import NO_PLAN
from placeto.formats.exports.units import ExportError, paths_of
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.borders import never_cut
from placeto.problem.step.plan import Plan
from placeto.simulator.schedule import Schedule, simulate

ALONE = "place with --placer pipeline, without --micro-batches"
"""How to place for a tool that doesn't train."""


@dataclass(frozen=True, eq=False)
class WholeLayers:
    """S stages of contiguous blocks on R replicas."""

    modules: tuple[str, ...]  # (L,) the blocks in program order
    before: tuple[str, ...]  # the outermost modules that compute before the blocks
    behind: tuple[str, ...]  # the outermost modules that compute behind them
    stages: tuple[tuple[int, int], ...]  # (S,) the first block of each stage, and the one behind its last
    devices: tuple[tuple[int, ...], ...]  # (R, S) where each replica has each stage; a device may have several
    micro_batches: int  # M; 1 if the step has none
    schedule: Schedule  # of the plan with whole blocks
    moved: float  # share of the time in ops that whole blocks put on another device than the placement

    @property
    def counts(self) -> tuple[int, ...]:
        """(S,) the number of blocks of each stage; only the first and the last may have none."""
        return tuple(end - first for first, end in self.stages)

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """(R, P) the devices of each replica, in the order of their first stages."""
        return tuple(tuple(dict.fromkeys(row)) for row in self.devices)


def in_whole_layers(problem: PlacementProblem, plan: Plan, tool: str, trains: bool = True) -> Plan:
    """Return the plan whose stages begin with blocks and that is most like a plan of a training step or an inference.

    Args:
        problem: the problem of the plan.
        plan: the plan; it keeps its stages if each of them has most of a block, and has fewer of them if not.
        tool: the name of the tool, for messages.
        trains: whether the tool trains, for messages.

    Raises:
        ExportError: the graph has no blocks, the layers no borders between them, or the replicas are uneven.
    """
    name = problem.graph.name
    paths_of(problem.graph)  # which refuses graphs without modules
    if not plan.even:
        instead = "place with --placer torch-pipeline" if trains else ALONE
        raise ExportError(
            f"{name}: the replicas of its stages differ in number or in their micro-batches, {tool} needs equally many "
            f"of each stage: {instead}"
        )
    blocks = plan.layers(problem).blocks
    if not blocks.modules:
        raise ExportError(
            f"{name} has no list of layers in which half of its forward pass is spent: only models of repeated "
            "layers, such as layers.0, layers.1, ..., can be divided by numbers of layers"
        )
    return plan.recut(blocks.rounded(plan.borders))


def whole_layers(schedule: Schedule, tool: str, trains: bool = True) -> WholeLayers:
    """Return the blocks of each stage in the plan of a training step or an inference.

    Args:
        schedule: the schedule of the plan.
        tool: the name of the tool, for messages.
        trains: whether the tool trains, for messages.

    Raises:
        ExportError: the placement has no plan, or see `in_whole_layers`.
    """
    problem, graph = schedule.problem, schedule.problem.graph
    if schedule.plan is None:
        paths_of(graph)  # whose refusal says more
        why = never_cut(graph) if trains else ""
        raise ExportError(f"{graph.name}: {why or f'{NO_PLAN} torch-pipeline' if trains else f'{NO_PLAN} pipeline'}")
    plan = in_whole_layers(problem, schedule.plan, tool, trains)
    blocks, whole = plan.layers(problem).blocks, schedule
    if plan != schedule.plan:
        order = schedule.order[schedule.order < problem.num_ops]
        whole = simulate(problem, plan, order=order)
    time = (schedule.finish_us - schedule.start_us) * (graph.micro_batches >= 0 if plan.num_micro_batches > 1 else 1)
    return WholeLayers(
        blocks.modules,
        blocks.before,
        blocks.behind,
        blocks.stages(plan.borders),
        tuple(zip(*plan.devices, strict=True)),
        plan.num_micro_batches,
        whole,
        float(time[whole.placement != schedule.placement].sum() / (time.sum() or 1.0)),
    )
