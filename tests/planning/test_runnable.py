"""Plans for a tool are such as its export takes, as it runs them."""

from typing import get_args

import numpy as np
import pytest
from torch import nn

from placeto.formats.exports.layer_tools import megatron
from placeto.formats.exports.torchtitan import torchtitan
from placeto.formats.exports.whole_layers import whole_layers
from placeto.heuristics.pipelines.plans import can_run, make_plan
from placeto.planning.planned_steps import PIPELINES, Kind, PlannedStep
from placeto.planning.runnable import Runner
from placeto.planning.ways import plans_of
from placeto.problem.cluster import load_cluster
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Tool
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.readings.memory_timeline import RECEIVE
from placeto.simulator.tool_steps.chunk_order import order_chunks
from tests.formats.torch_toys import WIDTH, captured, chain
from tests.planning.test_short_memory import variants_of

TOOLS: tuple[Tool, ...] = get_args(Tool)
PROBLEM = PlacementProblem(captured(chain(8), 4), load_cluster("4xv100"))
RUN_BY = {"torch": "torch-pipeline", "torchtitan": "torchtitan", "megatron": "Megatron-LM"}
IN_TURNS = ((0,), (1,), (0,), (1,))
BACK = ((0,), (1,), (1,), (0,))
BACK_TWICE = (*BACK, (0,), (1,))


@pytest.mark.parametrize(
    ("devices", "tools"),
    [
        (((0,), (1,)), TOOLS),
        (((0, 1), (2, 3)), TOOLS),
        (IN_TURNS, TOOLS),
        (BACK, ("torch", "torchtitan")),
        (BACK_TWICE, ("torch",)),
        (((0,), (1, 2, 3)), ()),
    ],
)
def test_tools_have_stages_on_devices_in_their_own_ways(
    devices: tuple[tuple[int, ...], ...], tools: tuple[Tool, ...]
) -> None:
    plan = make_plan(PROBLEM, devices, tuple(range(1, len(devices))))
    assert tuple(tool for tool in TOOLS if can_run(PROBLEM, tool, [], plan)) == tools


def planned_pipelines(problem: PlacementProblem, tool: Tool) -> list[PlannedStep]:
    """Those among the plans for a tool."""
    steps = plans_of(variants_of(lambda count: problem.graph, problem.cluster), [4], 0, runnable_by=tool).steps
    assert Kind.FREE not in {step.kind for step in steps}
    found = [step for step in steps if step.kind in PIPELINES]
    assert found
    return found


@pytest.mark.parametrize("tool", TOOLS)
def test_exports_take_the_plans(tool: Tool) -> None:
    pipelines = planned_pipelines(PROBLEM, tool)
    assert {step.kind for step in pipelines} == set(PIPELINES)
    for step in pipelines:
        order_chunks(step.placed)
        if tool == "torchtitan":
            exported = torchtitan(step.placed)
            assert (exported.layers.moved, exported.pipeline.step.makespan_us) == (0.0, step.step_us)
        if tool == "megatron":
            assert megatron(layers := whole_layers(step.schedule, tool))
            assert (layers.moved, step.order) == (0.0, "1f1b")
    assert {step.run_by for step in pipelines} == {RUN_BY[tool]}


def test_a_plan_that_divides_a_block_is_planned_anew() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(3)))
    problem = PlacementProblem(captured(model), load_cluster("2xv100"))
    divided = make_plan(problem, ((0,), (1,)), (3,))
    evaluator = Evaluator(problem, group_ops(problem))
    evaluator.score_plan(divided, divided.placement(problem))
    made = Runner("torchtitan").run(evaluator.result())
    assert made is not None
    found, run = made
    assert found.plan.borders == (4,)
    assert run.makespan_us == torchtitan(found.schedule()).pipeline.step.makespan_us
    assert whole_layers(found.schedule(), "torchtitan").moved == 0.0


def test_each_replica_of_torchtitan_has_all_parameters_of_its_stages_and_their_state() -> None:
    (step,) = (step for step in planned_pipelines(PROBLEM, "torchtitan") if step.shape == "2 stages x 2")
    problem, placement = step.result.problem, step.result.placement
    resident = np.where(np.array(problem.graph.op_types) == RECEIVE, 0, problem.resident_bytes)
    kept = [int(resident[placement == device].sum()) for device in range(4)]
    for replicas in step.placed.plan.devices:
        assert len({kept[device] for device in replicas}) == 1
    assert sum(kept) == 2 * int(PROBLEM.resident_bytes.sum())


def test_no_plan_for_torchtitan_has_a_stage_of_the_loss_alone() -> None:
    problem = PlacementProblem(captured(chain(3), 4), load_cluster("4xv100"))  # more devices than layers
    for step in planned_pipelines(problem, "torchtitan"):
        assert torchtitan(step.placed).layers.plan == step.placed.plan


@pytest.mark.parametrize("tool", ["torchtitan", "megatron"])
def test_whole_layers_have_as_many_stages_as_the_shape_says(tool: Tool) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3)))
    problem = PlacementProblem(captured(model, 4), load_cluster("2xv100"))  # 6 stages would divide its 3 layers
    for step in planned_pipelines(problem, tool):
        stages = len(whole_layers(step.placed, tool).stages)
        assert step.shape.startswith(f"{stages} stages")
