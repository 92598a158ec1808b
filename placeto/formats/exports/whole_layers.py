"""The layers that each device has in a plan, for tools that take a number of layers for each device.

These tools call the blocks of a model its layers (`placeto.problem.step.blocks`). What is computed before the blocks,
such as an embedding, goes to the first stage. What is computed behind them, such as a norm and a head, goes to the
last. If a border of the plan is inside a block, the block goes to the stage that has more of its forward pass.

Legend: N ops, L blocks, S stages, R replicas, M micro-batches, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass

from placeto.errors import PlacementError
from placeto.problem.graph.module_paths import around
from placeto.problem.step.borders import never_cut
from placeto.problem.step.plan import NO_BLOCKS, NO_PLAN, Plan, plan_of_inference
from placeto.problem.step.whole_modules import paths_of
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
    plan: Plan  # with whole blocks
    schedule: Schedule  # of this plan
    moved: float  # share of the time in ops that whole blocks put on another device than the placement

    @property
    def counts(self) -> tuple[int, ...]:
        """(S,) the number of blocks of each stage; only the first and the last may have none."""
        return tuple(end - first for first, end in self.stages)

    @property
    def recomputed(self) -> tuple[int, ...]:
        """(S,) the number of blocks that each stage recomputes, or parts of them."""
        chosen = {block for path in self.plan.recomputed for block in around(path)}
        return tuple(len(chosen.intersection(self.modules[first:end])) for first, end in self.stages)

    @property
    def recomputed_beside(self) -> tuple[str, ...]:
        """What the plan recomputes that is in no block, which tools don't."""
        return tuple(path for path in self.plan.recomputed if not {*around(path)}.intersection(self.modules))

    def recomputes_as(self, tool: str) -> bool:
        """Whether a tool that trains can recompute, of the blocks, those of the plan, and no others.

        torchtitan recomputes all blocks or none, Megatron-LM the first blocks of each stage, equally many in each.
        """
        most = max(self.recomputed) if tool == "megatron" else len(self.modules) if self.plan.recomputed else 0
        first = {path for begin, end in self.stages for path in self.modules[begin:end][:most]}
        return first == {*self.plan.recomputed} - {*self.recomputed_beside}

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """(R, P) the devices of each replica, in the order of their first stages."""
        return tuple(tuple(dict.fromkeys(row)) for row in self.plan.replicas)


def whole_layers(schedule: Schedule, tool: str, trains: bool = True) -> WholeLayers:
    """Return the blocks of each stage in the plan of a training step or an inference.

    Args:
        schedule: the schedule of the plan.
        tool: the name of the tool, for messages.
        trains: whether the tool trains, for messages.

    Raises:
        PlacementError: the placement has no plan, the graph has no blocks, or the replicas are uneven.
    """
    problem, graph = schedule.problem, schedule.problem.graph
    paths_of(graph)  # which refuses graphs without modules
    of_schedule = schedule.plan
    if of_schedule is None and not trains:
        of_schedule = plan_of_inference(problem, schedule.placement)
    if of_schedule is None:
        why = never_cut(graph) if trains else ""
        raise PlacementError(f"{graph.name}: {why or f'{NO_PLAN} torch-pipeline' if trains else f'{NO_PLAN} pipeline'}")
    if not of_schedule.even:
        raise PlacementError(
            f"{graph.name}: the replicas of its stages differ in number or in their micro-batches, {tool} needs "
            f"equally many of each stage: {'place with --placer torch-pipeline' if trains else ALONE}"
        )
    if of_schedule.width > 1 and not trains:
        raise PlacementError(f"{graph.name}: {of_schedule.no_groups(f'the export for {tool}')}")
    plan, whole = of_schedule.in_blocks(problem), schedule
    blocks = plan.layers(problem).blocks
    if not blocks.modules:
        raise PlacementError(f"{graph.name}: {NO_BLOCKS}")
    if plan != of_schedule:
        order = schedule.order[schedule.order < problem.num_ops]
        whole = simulate(problem, plan, order=order)
    time = (schedule.finish_us - schedule.start_us) * (graph.micro_batches >= 0 if plan.num_micro_batches > 1 else 1)
    return WholeLayers(
        blocks.modules,
        blocks.before,
        blocks.behind,
        blocks.stages(plan.borders),
        plan,
        whole,
        float(time[whole.placement != schedule.placement].sum() / (time.sum() or 1.0)),
    )
