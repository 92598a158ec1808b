"""Plans check themselves, place ops, and are told in a line."""

from dataclasses import replace

import numpy as np
import pytest

from placeto.errors import PlanError
from placeto.heuristics.pipelines.plans import all_plans, make_plan
from placeto.problem.checks import checked
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan, dealt
from placeto.problem.step.plan_files import PlanRecord, plan_document, plan_of
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from tests.formats.torch_toys import captured, chain

PROBLEM = PlacementProblem(captured(chain(8)), load_cluster("4xv100"))
PLAN = make_plan(PROBLEM, ((0, 1), (2, 3)))


def plan(devices: tuple[tuple[int, ...], ...], borders: tuple[int, ...] = (), count: int = 4) -> Plan:
    """A plan of four layers."""
    return Plan(devices, borders, tuple(dealt(count, np.ones(len(own))) for own in devices), 4)


def test_fields_that_contradict_each_other_are_refused() -> None:
    for wrong, told in (
        ({"borders": ()}, "2 stages needs 1 borders"),
        ({"borders": (0,)}, "leave a stage of a plan of 8 layers without layer"),
        ({"borders": (8,)}, "leave a stage of a plan of 8 layers without layer"),
        ({"devices": ((0, 0), (2, 3))}, "stage 0 needs different devices"),
        ({"micro_batches": (((0, 1), (2,)), ((0, 2), (1, 3)))}, "replicas of stage 1 must take each of the 3"),
        ({"micro_batches": (((0, 1), (2, 2)), ((0, 2), (1, 3)))}, "replicas of stage 0 must take each of the 4"),
        ({"sharding": (1,)}, "one of 0, 1, 2, 3 for each of 2 stages"),
        ({"sharding": (0, 4)}, "one of 0, 1, 2, 3 for each of 2 stages"),
        ({"sharding": (0, 2)}, "the stages of a pipeline have sharding 0 or 1"),
        ({"chunks": (((0, "F", 1),), (), (), ())}, "device 0 can't run chunk 0F1"),
        ({"chunks": (((0, "X", 0),), (), (), ())}, "device 0 can't run chunk 0X0"),
        ({"chunks": (((0, "F", 0), (0, "F", 0)), (), (), ())}, "chunk 0F0 of the plan, or not again"),
    ):
        with pytest.raises(PlanError, match=told):
            replace(PLAN, **wrong)  # type: ignore[arg-type]


def test_a_plan_for_another_step_is_refused() -> None:
    for other, told in ((captured(chain(4)), "has 4 layers in 4"), (captured(chain(8), 2), "has 8 layers in 2")):
        with pytest.raises(PlanError, match=f"plan is for 8 layers in 4 micro-batches, model {told}: plan this step"):
            PLAN.placement(PlacementProblem(other, load_cluster("4xv100")))


def test_shapes() -> None:
    mixed, alike = load_cluster("2xrtx3090+1xrtx4090"), load_cluster("4xv100")
    for devices, shape in (
        (((2, 0),), "2 replicas on 1 x rtx3090 + 1 x rtx4090"),
        (((0,), (1,)), "2 stages x 1 on 2 x rtx3090"),
        (((0,), (1,), (2,)), "3 stages x 1"),
        (((0,), (1, 2)), "stages of 1, 2"),
    ):
        assert plan(devices, tuple(range(1, len(devices)))).shape(mixed) == shape
    for devices, shape in (
        (((0, 1),), "2 replicas"),
        (((0,), (1,)), "2 stages x 1 on 2 devices"),
        (((0, 1), (2, 3), (0, 1), (2, 3)), "4 stages x 2, again"),
        (((0, 1), (2, 3), (2, 3), (0, 1)), "4 stages x 2, and back"),
        (((0, 1), (2, 3), (2, 3)), "3 stages x 2, and back"),
    ):
        assert plan(devices, tuple(range(1, len(devices)))).shape(alike) == shape


def test_stages_may_be_joined_or_left_out() -> None:
    back = plan(((0,), (1,), (1,), (0,)), (1, 2, 3))
    assert back.joined() == plan(((0,), (1,), (0,)), (1, 3))
    assert back.joined().joined() == back.joined()
    assert plan(((1,), (1,), (1,)), (1, 2)).joined() == plan(((1,),))
    assert back.recut((1, 1, 3)) == plan(((0,), (1,), (0,)), (1, 3))
    assert back.recut((2, 2, 2)) == plan(((0,), (0,)), (2,))
    assert back.moved(0, 1) is None
    assert back.moved(2, -1) is None
    assert plan(((0,), (1,)), (2,)).moved(0, 1) == plan(((0,), (1,)), (3,))


def test_every_plan_is_read_as_it_was_written() -> None:
    cluster = PROBLEM.cluster
    for number, each in enumerate(all_plans(PROBLEM)):
        most = 4 if len(each.devices) == 1 else 2
        sharded = replace(each, sharding=(number % most,) * len(each.devices)) if number % most else each
        cells = [(device, stage, m) for (stage, m), device in np.ndenumerate(each.device)]
        chunks = tuple(tuple((stage, "F", m) for at, stage, m in cells if at == device) for device in range(4))
        for written in (sharded, replace(sharded, chunks=chunks), replace(sharded, width=2)):
            assert plan_of(plan_document(written, cluster), cluster, ValueError) == written


def test_what_is_no_plan_is_refused_in_a_sentence() -> None:
    cluster = PROBLEM.cluster
    right = plan_document(PLAN, cluster)
    stage = right["stages"][0]
    for wrong, told in (
        (right | {"stages": []}, "a plan of 0 stages"),
        (right | {"stages": [stage | {"first_layer": 1}]}, "the first stage must begin with layer 0, not 1"),
        (right | {"stages": [stage | {"replicas": [{"device": "x", "micro_batches": [0]}]}]}, "device 'x' is not in"),
        (right | {"chunks": {"gpu:0": ["0Q1"]}}, "chunk '0Q1' must be a stage, F, I, W or B, and a micro-batch"),
        (right | {"chunks": {"gpu:0": ["1F0"]}}, "device 0 can't run chunk 1F0"),
        ([], "must be an object"),
    ):
        with pytest.raises(ValueError, match=told) as caught:
            plan_of(checked(wrong, PlanRecord, ValueError), cluster, ValueError)
        assert "\n" not in str(caught.value)


def test_a_result_has_the_plan_of_its_placement() -> None:
    evaluator = Evaluator(PROBLEM)
    placement = PLAN.placement(PROBLEM)
    evaluator.score_plan(PLAN, placement)
    assert evaluator.result().plan == PLAN
    assert evaluator.result().schedule().plan == PLAN
    assert evaluator.result().makespan_us == simulate(PROBLEM, PLAN).makespan_us
    other = make_plan(PROBLEM, ((0, 1, 2, 3),))
    evaluator.score_ops(other.placement(PROBLEM))  # as a search may meet it
    assert simulate(PROBLEM, other).makespan_us < simulate(PROBLEM, PLAN).makespan_us
    assert evaluator.result().plan is None
    evaluator.note_plan(other, other.placement(PROBLEM))
    assert evaluator.result().plan == other


def test_a_plan_says_itself_in_a_line() -> None:
    cluster = load_cluster("2x4xv100")
    replicas = tuple(((0, 2), (1, 3), (), ()) for _ in range(2))
    plan = Plan(((0, 1, 2, 3), (4, 5, 6, 7)), (2,), replicas, 4)
    assert plan.line(cluster) == "2 stages x 4, 4 micro-batches"
    more = replace(plan, sharding=(1, 1), recomputed=("h.0", "h.1"), chunks=(((0, "F", 0),),))
    told = "2 stages x 4, optimizer sharded, 4 micro-batches, 2 blocks recomputed, an order of chunks of its own"
    assert more.line(cluster) == told
