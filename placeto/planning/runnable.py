"""Plans as they run in the tools that train pipelines: torch, torchtitan and Megatron-LM.

torch cuts a model between modules, the others between whole layers; Megatron-LM has an order of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial

from placeto.heuristics.pipelines.order_choice import choose_order, orders_to_try, try_bounded_orders
from placeto.heuristics.pipelines.plans import can_run
from placeto.planning.numbers import Setting
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan, Tool
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.tool_steps.pipeline_step import in_whole_chunks, pipeline_step, with_least_memory


def runner(problem: PlacementProblem, wanted: Tool | None) -> Tool | None:
    """Return the tool that is to run pipelines: the one that was asked for, or torchtitan for groups; None = any."""
    return wanted or ("torchtitan" if problem.width > 1 else None)


def keeping(
    problems: Mapping[Setting, PlacementProblem], tool: Tool | None, refusals: list[str]
) -> dict[Setting, Callable[[Plan], bool]]:
    """Return by width and number of micro-batches whether a plan counts: see `_kept`."""
    return {key: partial(_kept, problem, runner(problem, tool), refusals) for key, problem in problems.items()}


def _kept(problem: PlacementProblem, tool: Tool | None, refusals: list[str], plan: Plan) -> bool:
    """Whether each of several devices of a plan takes a micro-batch, and a tool can run it; else, why it can't."""
    if len(plan.used) == 1 or not all(itertools.chain(*plan.micro_batches)):
        return False
    return tool is None or (plan.even if len(plan.devices) == 1 else can_run(problem, tool, refusals, plan))


def as_run(
    tool: Tool, result: PlacementResult, ordered: bool = False
) -> tuple[PlacementResult, PlacementResult] | None:
    """Return a plan's placement in the best order that a tool can run, and the step as the tool runs it.

    Return None if the tool can't run the plan, or only with fewer stages. For torch and torchtitan, the second result
    is of another graph, which also has what torch does after the chunks. For Megatron-LM, both results are the same.

    Args:
        tool: the tool that is to run the plan.
        result: the placement of the plan.
        ordered: whether torch keeps to the order of the placement's own ops.
    """
    problem, given = result.problem, result.plan
    assert given is not None
    plan = given if tool == "torch" else given.in_blocks(problem)
    if len(plan.devices) < len(given.devices) or plan.refusal(problem, tool):
        return None
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
