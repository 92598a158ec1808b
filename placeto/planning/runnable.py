"""Plans as they run in the tools that train pipelines: torch, torchtitan and Megatron-LM.

torch cuts a model between modules, the others between whole layers; Megatron-LM has an order of its own.
"""

from __future__ import annotations

from typing import Literal

from placeto.formats.exports import ExportError
from placeto.formats.exports.layer_tools import in_turns, megatron
from placeto.formats.exports.torch_orders import in_whole_chunks
from placeto.formats.exports.torchtitan import goes_back, torchtitan
from placeto.formats.exports.whole_layers import whole_layers
from placeto.heuristics.order_choice import choose_order, orders_to_try, try_bounded_orders
from placeto.problem.grouping import Groups
from placeto.problem.step.plan import Plan
from placeto.simulator.evaluator import Evaluator, PlacementResult

Tool = Literal["torch", "torchtitan", "megatron"]


def may_run(tool: Tool, plan: Plan) -> bool:
    """Whether a tool can have its stages on the devices on which a plan has them."""
    if not plan.even:
        return False
    rows = tuple(zip(*plan.devices, strict=True))
    return tool == "torch" or in_turns(rows) or (tool == "torchtitan" and goes_back(rows))


def as_run(tool: Tool, result: PlacementResult, groups: Groups) -> tuple[PlacementResult, PlacementResult] | None:
    """Return a plan's placement in the best order that a tool can run, and the step as the tool runs it.

    Return None if the tool can't run the plan, or only with fewer stages. For torch and torchtitan, the second result
    is of another graph, which also has what torch does after the chunks. For Megatron-LM, both results are the same.

    Args:
        tool: the tool that is to run the plan.
        result: the placement of the plan.
        groups: the groups of the plan's problem.
    """
    try:
        if tool == "torch":
            return in_whole_chunks(result)
        made = whole_layers(result.schedule(), tool)
        plan, placement = made.schedule.plan, made.schedule.placement
        if plan is None or result.plan is None or len(plan.devices) < len(result.plan.devices):
            return None
        evaluator = Evaluator(result.problem, groups)
        if tool == "megatron":
            megatron(made)
            evaluator.reorder("1f1b")
            evaluator.score_plan(plan, placement)
            return (found := evaluator.result()), found
        evaluator.score_plan(plan, placement)
        choose_order(evaluator, orders_to_try(result.problem))
        try_bounded_orders(evaluator, placement)
        found = evaluator.result()
        return found, torchtitan(found.schedule()).step
    except ExportError:
        return None
