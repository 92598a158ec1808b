"""Plans as they run in the tools that train pipelines: torch, torchtitan and Megatron-LM.

torch cuts a model between modules, the others between whole layers; Megatron-LM has an order of its own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from placeto.heuristics.pipelines.order_choice import choose_order, orders_to_try, try_bounded_orders
from placeto.heuristics.pipelines.plans import can_run
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan, Tool
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.tool_steps.pipeline_step import in_whole_chunks, pipeline_step, with_least_memory


@dataclass
class Runner:
    """What is to run the ways: a tool, or any; and why it can't run those pipelines that it refused."""

    wanted: Tool | None = None
    refusals: list[str] = field(default_factory=list)

    def tool(self, problem: PlacementProblem) -> Tool | None:
        """The tool that is to run pipelines: the one that was asked for, or torchtitan for groups; None = any."""
        return self.wanted or ("torchtitan" if problem.width > 1 else None)

    def keeps(self, problem: PlacementProblem, plan: Plan) -> bool:
        """Whether each of several devices of a plan takes a micro-batch, and the tool can run it; else, note why."""
        if len(plan.used) == 1 or not all(itertools.chain(*plan.micro_batches)):
            return False
        if (tool := self.tool(problem)) is None:
            return True
        return plan.even if len(plan.devices) == 1 else can_run(problem, tool, self.refusals, plan)

    def run(self, result: PlacementResult, ordered: bool = False) -> tuple[PlacementResult, PlacementResult] | None:
        """Return a plan's placement in the best order that the tool can run, and the step as the tool runs it.

        Return None if the tool can't run the plan, or only with fewer stages. If any tool may run it, torch does, or
        else Placeto's own runtime, as it is placed. For torch and torchtitan, the second result is of another graph,
        which also has what torch does after the chunks. For Megatron-LM, both results are the same.

        Args:
            result: the placement of the plan.
            ordered: whether torch keeps to the order of the placement's own ops.
        """
        problem, given, wanted = result.problem, result.plan, self.tool(result.problem)
        assert given is not None
        tool = wanted or "torch"
        plan = given if tool == "torch" else given.in_blocks(problem)
        if len(plan.devices) < len(given.devices) or plan.refusal(problem, tool):
            return None if wanted else (result, result)
        if tool == "torch":
            return in_whole_chunks(result, ordered)
        evaluator, placement = Evaluator(problem), plan.placement(problem)
        if tool == "megatron":
            evaluator.reorder("1f1b")
            evaluator.score_plan(plan, placement)
            return (placed := evaluator.result()), placed
        evaluator.score_plan(plan, placement)
        choose_order(evaluator, orders_to_try(problem))
        try_bounded_orders(evaluator, placement)
        return (placed := evaluator.result()), pipeline_step(with_least_memory(placed.schedule(), alike=True))
