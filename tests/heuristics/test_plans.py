"""Stages on replicas, and the order in which steps in micro-batches run."""

from functools import reduce

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from placeto.capture.trace import capture_inference, capture_training
from placeto.heuristics import HEURISTICS
from placeto.heuristics.pipelines.bounded_orders import bounded_orders
from placeto.heuristics.pipelines.order_choice import choose_order, orders_to_try, try_bounded_orders
from placeto.heuristics.pipelines.plans import all_plans, make_plan, parts_to_plan
from placeto.placers import load_placer
from placeto.problem.cluster import STATIC_ORDERS, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import Plan
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from tests.captures import Made, chained, linears, meta, square
from tests.cases import problem_of, with_devices
from tests.planning.test_short_memory import graph_of, limited

LAYERS = 8


def chain(micro_batches: int) -> ComputationGraph:
    return chained(LAYERS, 1024, 16384, micro_batches, bias=False)


GRAPH = chain(8)


def test_a_plan_divides_layers_by_stage_and_micro_batches_by_replica() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("4xv100"))
    plan = make_plan(problem, ((0, 1), (2, 3)))
    assert plan.borders == (LAYERS // 2,)
    placement, layer = plan.placement(problem), layers(problem, False).number
    assert (placement // 2 == (layer >= plan.borders[0])).all()
    for micro_batch in range(8):
        used = {int(device) % 2 for device in placement[GRAPH.micro_batches == micro_batch]}
        assert used == {micro_batch % 2}
    other = make_plan(problem, ((0, 2), (1, 3))).placement(problem)
    assert (other % 2 == (layer >= plan.borders[0])).all()
    for colour in set(GRAPH.colocation[GRAPH.colocation >= 0].tolist()):
        assert len(set(placement[GRAPH.colocation == colour].tolist())) == 1


def test_without_micro_batches_each_op_is_where_its_layer_is() -> None:
    # each layer's first input comes from the layer before
    sums = Made(lambda self, x: reduce(lambda x, layer: x + layer(x), self.layers, x), layers=linears(4, 64))
    problem = PlacementProblem(capture_inference(sums, [torch.empty(64, 64)]), load_cluster("2xv100"))
    plan = make_plan(problem, ((1,), (0,)))
    stage = np.searchsorted(plan.borders, layers(problem, False).number, side="right")
    assert plan.placement(problem).tolist() == (1 - stage).tolist()
    assert set(stage.tolist()) == {0, 1}


def test_faster_devices_get_more_layers_and_more_micro_batches() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("2xv100+2xp100"))
    load = np.bincount(make_plan(problem, ((0, 1, 2, 3),)).placement(problem)[GRAPH.micro_batches >= 0])
    assert load[0] == load[1] > load[2] == load[3] > 0
    (border,) = make_plan(problem, ((0, 1), (2, 3))).borders
    assert border > LAYERS // 2
    assert make_plan(problem, ((0, 1), (2, 3))).moved(0, -border) is None
    moved = make_plan(problem, ((0, 1), (2, 3))).moved(0, 1)
    assert moved.borders == (border + 1,)


def grid(stages: int) -> tuple[tuple[int, ...], ...]:
    """Eight devices in equal stages of neighbours."""
    return tuple(tuple(row) for row in np.arange(8).reshape(stages, -1).tolist())


def across(stages: int) -> tuple[tuple[int, ...], ...]:
    """Eight devices in equal stages, of which neighbours make a pipeline."""
    return tuple(tuple(row) for row in np.arange(8).reshape(-1, stages).T.tolist())


def test_plans_and_orders_are_chosen_by_simulation() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("2x4xv100"))
    found = HEURISTICS["pipeline"](problem)
    every = [
        simulate(problem.under(order), make_plan(problem, devices).placement(problem)).makespan_us
        for order in ("priority", "earlier-0.02")
        for devices in (grid(1), grid(2), across(2), grid(4), across(4), grid(8), ((0, 1, 2, 3, 4, 5), (6, 7)))
    ]
    assert found.makespan_us <= min(every)
    assert found.schedule().makespan_us == found.makespan_us
    orders = [simulate(problem.under(order), found.placement).makespan_us for order in STATIC_ORDERS]
    made_for_it = [
        simulate(problem, found.placement, order=order).makespan_us
        for order in bounded_orders(problem, found.placement)
    ]
    assert found.makespan_us == min(orders + made_for_it)


def test_devices_may_have_several_stages_so_that_the_first_and_the_last_layer_share_one() -> None:
    parts = {"words": nn.Embedding(16384, 512, device="meta"), "layers": linears(LAYERS, 512, device="meta")}
    tied = Made(lambda self, x: nn.functional.linear(self.layers(self.words(x)), self.words.weight), **parts)
    graph = capture_training(tied, [meta(4096).long()], square, micro_batches=8)
    problem = PlacementProblem(graph, load_cluster("2x4xv100"))
    cut = layers(problem, False)
    plans = all_plans(problem)
    assert grid(4) * 2 in {plan.devices for plan in plans}
    back = make_plan(problem, grid(2) + grid(2)[::-1])
    assert back in plans
    assert not any(len(plan.devices) > len(cut.work_us) for plan in plans)
    placement = back.placement(problem)
    matrix = graph.index["words.weight"]
    readers = placement[graph.edge_dst[graph.edge_src == matrix]]
    assert {0, len(cut.work_us) - 1} <= set(cut.number[graph.edge_dst[graph.edge_src == matrix]].tolist())
    assert set(readers // 4) == {placement[matrix] // 4} == {0}
    once = [plan for plan in plans if not plan.interleaved]
    evaluator = Evaluator(problem)
    alone = min(evaluator.score_ops(plan.placement(problem)) for plan in once)
    assert evaluator.score_ops(placement) < 0.9 * alone


def test_an_order_that_is_asked_for_stays() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("4xv100"), dispatch="fifo")
    for placer in ("pipeline", "multilevel"):
        assert load_placer(placer)(problem, simulations=50).problem.dispatch == "fifo"


def test_searches_choose_the_order_again_at_their_end() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("2x4xv100"))
    for placer in ("multilevel", "placeto"):
        found = load_placer(placer)(problem, simulations=200)
        assert found.simulations <= 200
        assert found.schedule().makespan_us == found.makespan_us <= HEURISTICS["pipeline"](problem).makespan_us
        orders = [simulate(problem.under(order), found.placement).makespan_us for order in STATIC_ORDERS]
        assert found.makespan_us <= min(orders)


def test_graphs_whose_micro_batches_have_no_forward_pass_are_placed() -> None:
    of = {"pass": "backward", "flops": 1e6, "outputs": [4]}
    ops = [{"name": f"b{number}", "micro_batch": number, **of} for number in range(2)]
    problem = problem_of(ops, "2xv100")
    for placer in ("pipeline", "multilevel"):
        assert load_placer(placer)(problem, simulations=20).fits


def test_a_budget_holds() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("4xv100"))
    for simulations in (0, 1, 3, 9):
        assert HEURISTICS["pipeline"](problem, simulations=simulations).simulations <= simulations
    single = PlacementProblem(chain(1), load_cluster("4xv100"))
    found = HEURISTICS["pipeline"](single)
    assert found.problem is single
    assert found.makespan_us <= simulate(single, make_plan(single, ((0,), (1,), (2,), (3,)))).makespan_us


def test_gradients_of_weights_are_not_deferred_if_memory_is_short_of_what_they_keep() -> None:
    def block() -> nn.Module:
        parts = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to("meta")
        return Made(lambda self, x: checkpoint(self.parts, x, use_reentrant=False), parts=parts)

    graph = capture_training(nn.Sequential(*(block() for _ in range(4))), [meta(8192, 64)], square, micro_batches=2)
    cluster = load_cluster("2xv100")
    free = load_placer("pipeline")(PlacementProblem(graph, cluster))
    peak = int(free.schedule().peak_memory.max())
    problem = PlacementProblem(graph, with_devices(cluster, memory=peak * 2 // 5))
    assert not any(
        simulate(problem, free.placement, order=order).fits for order in bounded_orders(problem, free.placement)
    )
    (order,) = bounded_orders(problem, free.placement, defer=False)
    assert simulate(problem, free.placement, order=order).fits
    found = load_placer("pipeline")(problem)
    assert found.fits
    assert found.makespan_us < 1.001 * free.makespan_us


@pytest.mark.parametrize("megabytes", [2.02, 2.1, 2.2, 2.4])
def test_pipeline_fits_wherever_one_of_its_plans_fits_in_one_of_its_orders(megabytes: float) -> None:
    problem = PlacementProblem(graph_of(4), limited(int(megabytes * 1e6), "4xv100"))
    plans = [plan for devices in parts_to_plan(problem) for plan in all_plans(problem, devices)]

    def one_fits(plan: Plan) -> bool:
        placement = plan.placement(problem)
        evaluator = Evaluator(problem)
        evaluator.score_ops(placement)
        choose_order(evaluator, orders_to_try(problem))
        try_bounded_orders(evaluator, placement)
        return evaluator.best_fits

    assert HEURISTICS["pipeline"](problem).fits or not any(one_fits(plan) for plan in plans)
