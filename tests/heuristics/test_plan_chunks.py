"""The chunks of a plan take as long as its ops where nothing overlaps, and rank plans as their ops do."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from placeto.heuristics.pipelines.plan_chunks import chunk_problem, rank_plan
from placeto.heuristics.pipelines.plans import FIRST_ORDERS, all_plans, make_plan, ranked_plans, score_plans
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layer_costs import layer_costs
from placeto.problem.step.layers import layers
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from tests.cases import with_devices
from tests.formats import torch_toys
from tests.heuristics.test_plans import chain

GRAPH = chain(8)


def test_the_chunks_of_one_device_take_the_work_of_its_ops() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("2xv100"))
    costs = layer_costs(problem, False)
    assert 8 * costs.busy_us[:, :, 0].sum() == pytest.approx(problem.busy_us[:, 0].sum())
    assert costs.resident.sum() == problem.resident_bytes.sum()
    alone = make_plan(problem, ((0,),), ())
    assert rank_plan(problem, alone, ["priority"]).score == pytest.approx(simulate(problem, alone).makespan_us)


def test_chunks_take_as_long_as_their_launches() -> None:
    """Those of all ops, of sums of gradients over micro-batches, too."""
    problem = PlacementProblem(GRAPH, with_devices("2xv100", launch_us=1e4))
    alone = make_plan(problem, ((0,),), ())
    launches_us = 1e4 * int((problem.op_time[:, 0] > 0.0).sum())
    assert 8 * layer_costs(problem, False).launching_us[:, :, 0].sum() == pytest.approx(launches_us)
    assert rank_plan(problem, alone, ["priority"]).score == pytest.approx(
        simulate(problem, alone).makespan_us, rel=0.01
    )


def test_hosts_launch_ops_of_chunks_while_devices_wait() -> None:
    """If launches began with each chunk, the chunks of these plans would take 1.04 to 1.11 times as long as the ops."""
    problem = PlacementProblem(GRAPH, with_devices("4xv100", launch_us=300.0))
    for plan in (plan for plan in all_plans(problem) if len(plan.devices) > 1):
        ops_us = min(simulate(problem.under(order), plan).makespan_us for order in FIRST_ORDERS)
        assert 0.96 * ops_us < rank_plan(problem, plan, FIRST_ORDERS).score <= ops_us


def test_gradients_of_replicas_are_exchanged() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("4xv100"))
    chunks, placement = chunk_problem(problem, make_plan(problem, ((0, 1, 2, 3),), ()))
    ran = simulate(chunks, placement)
    sent = chunks.graph.output_bytes[ran.send_tensor].sum()
    whole = int(layers(problem, False).parameters.sum())
    assert sent == 2 * 3 * 4 * (whole // 4)  # each device sends its part of the weights, and three parts of gradients
    small = chunks.graph.num_ops
    assert small == 8 * 3 + 4 + 4 * 8  # chunks, parts of the weights, and the sum of eight gradients of each part


@pytest.mark.parametrize("cluster", ["4xv100", "2x4xv100", "2xv100+2xp100"])
def test_ranks_are_those_of_the_ops(cluster: str) -> None:
    problem = PlacementProblem(GRAPH, load_cluster(cluster))
    ranked = ranked_plans(problem)
    ops = [min(simulate(problem.under(order), plan).makespan_us for order in FIRST_ORDERS) for _, _, plan in ranked]
    assert spearmanr([each.score for each in ranked], ops)[0] > 0.6  # 0.64 to 0.99
    scored = score_plans(Evaluator(problem))
    assert len(scored) < len(ranked)
    assert scored[0][0] == min(ops)
    assert ranked_plans(problem, ended=lambda: True) == []
    assert np.isclose([score for score, _, _ in scored], sorted(score for score, _, _ in scored)).all()


def test_stages_send_what_another_one_reads_directly_to_it() -> None:
    problem = PlacementProblem(torch_toys.captured(torch_toys.tied()), load_cluster("4xv100"))
    chunks, placement = chunk_problem(problem, make_plan(problem, ((0,), (1,), (2,), (3,)), (1, 2, 3)))
    ran, weight = simulate(chunks, placement), 4 * torch_toys.WIDTH**2
    large = ran.send_tensor[chunks.graph.output_bytes[ran.send_tensor] >= weight]
    # The weight goes from the first stage to the last once a step, and its gradient back once a micro-batch.
    assert sorted(placement[chunks.graph.producer[large]].tolist()) == [0, 3, 3, 3, 3]


def test_layers_that_overlap_in_one_micro_batch_have_all_their_plans_simulated() -> None:
    problem = PlacementProblem(chain(1), load_cluster("2x4xv100"))
    assert len(score_plans(Evaluator(problem))) == len(ranked_plans(problem)) > 4
