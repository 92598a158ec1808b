"""Where memory is short, ways fit since they recompute blocks, and as few of them as possible."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from graphs import llama
from placeto.capture import capture_training
from placeto.formats.placement import load_placement
from placeto.formats.plan import load_plan, save_plan
from placeto.heuristics.pipelines.block_costs import block_costs
from placeto.heuristics.pipelines.bounded_orders import bounded_orders
from placeto.heuristics.pipelines.plans import make_plan
from placeto.planning.planned_steps import PIPELINES, Kind, Plans
from placeto.planning.runnable import Runner
from placeto.planning.short_memory import ways_that_fit
from placeto.planning.single_ways import one_device, replicas_of
from placeto.planning.variants import Variants
from placeto.planning.ways import leanest, plans_of
from placeto.problem.cluster import STATIC_ORDERS, Cluster
from placeto.problem.costs import EFFICIENCY
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.graph_memory import with_optimizer
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import Plan, Tool
from placeto.problem.step.recomputation import recomputable
from placeto.simulator.schedule import simulate
from placeto.simulator.tool_steps.chunk_order import order_chunks
from placeto.simulator.tool_steps.pipeline_step import pipeline_step
from tests.captures import square
from tests.cases import with_devices
from tests.problem.step.test_recomputation import Block

BATCH, BLOCKS = 256, 6


@cache
def graph_of(count: int) -> ComputationGraph:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(64, 64), *(Block(0.0) for _ in range(BLOCKS)))
        return capture_training(module, [torch.empty(BATCH, 64)], square, micro_batches=count)


def limited(memory: int, cluster: str = "2xv100") -> Cluster:
    return with_devices(cluster, memory=memory)


def variants_of(graph_of: Callable[[int], ComputationGraph], cluster: Cluster) -> Variants:
    """The step in numbers of micro-batches, of all samples, without groups."""
    return Variants(lambda count, *_: graph_of(count), cluster, EFFICIENCY)


class Chosen(Runner):
    """Runs those plans alone that a test chooses."""

    def __init__(self, keep: Callable[[Plan], bool]) -> None:
        super().__init__()
        self.keep = keep

    def keeps(self, problem: PlacementProblem, plan: Plan) -> bool:
        return self.keep(plan)


@cache
def planned(memory: int, counts: tuple[int, ...] = (2, 4)) -> Plans:
    """Ways to run the step in 2 or 4 micro-batches, without a search for free placements."""
    return plans_of(variants_of(graph_of, limited(memory)), counts, simulations=0)


@cache
def needed() -> int:
    """Bytes on the fullest device of the best way."""
    return planned(10**12).best.used


def test_nothing_is_recomputed_where_the_best_way_fits() -> None:
    free, tight = planned(10**12), planned(needed())
    assert [(step.name, step.step_us) for step in tight.steps[:1]] == [(free.best.name, free.best.step_us)]
    assert tight.unlimited is None
    assert "the memory costs" not in tight.advice()
    assert planned(int(0.9 * needed())).unlimited.step_us == free.best.step_us
    assert not any(step.recomputed for step in (*free.steps, *tight.steps))


@pytest.mark.parametrize("share", [0.8, 0.6])
def test_each_kind_of_way_fits_with_the_fewest_blocks(share: float) -> None:
    found = planned(int(share * needed()))
    assert found.best.fits
    assert f": the memory costs {100.0 * (found.best.step_us / found.unlimited.step_us - 1.0):.1f} %" in found.advice()
    recomputing = [step for step in found.steps if step.recomputed]
    assert {step.kind for step in recomputing} - {*PIPELINES}
    assert {step.kind for step in recomputing} & {*PIPELINES} or share == 0.8  # there, some take 10 % longer
    for step in recomputing:
        assert step.fits
        blocks = step.plan.recomputed
        assert step.recomputed == f"{len(blocks)} of {BLOCKS} blocks"
        problem = PlacementProblem(graph_of(step.micro_batches), limited(step.room))
        if step.kind not in PIPELINES:
            assert blocks == recomputable(problem.graph)[: len(blocks)]
            fewer = blocks[:-1]
            one = step.kind == Kind.ONE
            less = (
                one_device(problem, step.fullest, fewer)
                if one
                else replicas_of(problem, replace(step.plan, recomputed=fewer))
            )
            assert not less.fits
            assert less.step_us < step.step_us


def test_the_leanest_way_recomputes_blocks_where_simple_ways_fit_and_are_slow() -> None:
    memory = int(0.6 * needed())
    found = leanest(Runner(), PlacementProblem(graph_of(4), limited(memory)))
    whole = next(step for step in planned(memory).steps if step.kind == Kind.WHOLE and step.micro_batches == 4)
    assert found.recomputed
    assert found.fits
    assert whole.fits
    assert found.step_us < whole.step_us


def test_where_nothing_fits_all_blocks_are_recomputed() -> None:
    found = planned(int(0.15 * needed()), (2,))
    assert not found.best.fits
    assert found.best.recomputed == f"{BLOCKS} of {BLOCKS} blocks"
    assert f"None of these fits: {found.best.name} lacks the least" in found.advice()


def in_all_orders(problem: PlacementProblem, plan: Plan) -> list[tuple[int, float]]:
    """Bytes of the fullest device, and makespan, of a plan as torch runs it, in each of its orders."""
    problem = plan.step(problem)
    placement = plan.placement(problem)
    schedules = [simulate(problem.under(order), placement, plan=plan) for order in STATIC_ORDERS]
    for how in product((True, False), (False, True)):
        orders = bounded_orders(problem, placement, *how)
        schedules += [simulate(problem, placement, order=order, plan=plan) for order in orders]
    runs = [pipeline_step(order_chunks(schedule)).schedule() for schedule in schedules]
    return [(int(run.peak_memory.max()), run.makespan_us) for run in runs]


@cache
def llama_of(count: int) -> ComputationGraph:
    with torch.device("meta"):
        step = llama.training_step(llama.Network(llama.Size(4, 128, 4, 4, 512), 128, 16))
        return capture_training(step.module, step.inputs, step.loss, targets=step.targets, micro_batches=count)


@pytest.mark.parametrize(("graph", "cluster"), [(graph_of, "2xv100+2xp100"), (llama_of, "4xv100")])
def test_pipelines_fit_where_all_or_no_blocks_recomputed_do_and_are_no_slower(
    graph: Callable[[int], ComputationGraph], cluster: str
) -> None:
    """The search decides by chunks: ops of so small steps take up to 3.1 % longer in its order than in the best one."""
    wide = PlacementProblem(graph(4), limited(10**15, cluster))
    devices = tuple((device,) for device in range(wide.num_devices))
    costs = block_costs(wide)
    none = costs.in_stages(make_plan(wide, devices))
    assert none is not None
    ran = in_all_orders(wide, none) + in_all_orders(wide, costs.recomputing(none, [BLOCKS] * len(devices)))
    for memory in np.linspace(min(ran)[0], max(ran)[0], 6)[1:].astype(int).tolist():
        problem = replace(wide, cluster=limited(memory, cluster))
        ways = ways_that_fit({problem.setting: problem}, [], Chosen(lambda plan: plan.devices == devices))
        best_us = min(us for needed, us in ran if needed <= memory)
        assert min(step.step_us for step in ways if step.fits) <= 1.04 * best_us


def test_no_pipeline_is_found_that_nothing_runs() -> None:
    """Placeto's own runtime alone runs replicas with unlike numbers of micro-batches, and it doesn't recompute."""
    problem = PlacementProblem(graph_of(4), limited(int(0.45 * needed()), "2xv100+2xp100"))
    uneven, even = (
        ways_that_fit({problem.setting: problem}, [], Chosen(keep))
        for keep in (lambda plan: not plan.even, lambda plan: plan.even)
    )
    assert {(step.run_by, step.recomputed) for step in uneven} == {("placeto run", "")}
    assert "torch-pipeline" in {step.run_by for step in even if step.recomputed}
    whole = replace(next(step for step in even if step.recomputed and step.kind in PIPELINES), tool=None)
    unlike = replace(whole, plan=replace(uneven[0].plan, chunks=(), recomputed=whole.plan.recomputed))
    assert unlike.run_by == "-"
    assert replace(unlike, plan=replace(unlike.plan, width=2)).run_by == "torchtitan"


def test_no_tool_is_given_a_part_of_a_recomputed_block() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(3)))
    problem = PlacementProblem(
        capture_training(model, [torch.empty(BATCH, 64)], square, micro_batches=4), limited(10**12)
    )
    number = layers(problem, False).number
    first, inner = (int(number[problem.graph.index[f"1.{place}/addmm"]]) for place in (0, 2))
    for border, refusal in (first, ""), (inner, "it recomputes 1 as a whole, and cuts it into two stages"):
        plan = replace(make_plan(problem, ((0,), (1,)), (border,)), recomputed=("1",))
        assert plan.refusal(plan.step(problem)).startswith(refusal)
        assert bool(plan.refusal(plan.step(problem))) == bool(refusal)


def test_a_plan_that_recomputes_is_read_as_it_was_written(tmp_path: Path) -> None:
    memory = int(0.5 * needed())
    step = next(step for step in planned(memory).steps if step.kind == Kind.PIPELINE and step.recomputed)
    path = f"{tmp_path}/plan.json"
    save_plan(step.file(limited(memory), BATCH), path)
    file, placed = load_plan(path), load_placement(path)
    assert tuple(file.plan["recomputed"]) == step.plan.recomputed
    graph = placed.step(graph_of(step.micro_batches))
    assert graph.hash == placed.graph_hash
    assert placed.plan_on(limited(memory)) == step.plan
    assert placed.devices(graph, limited(memory)).tolist() == step.placed.placement.tolist()


@pytest.mark.parametrize(
    ("optimizer", "tool", "sharded"), [("adam", None, 1), ("sgd", None, 0), ("adam", "torchtitan", 0)]
)
def test_replicas_of_stages_share_out_what_the_optimizer_keeps(optimizer: str, tool: Tool | None, sharded: int) -> None:
    """Where torch runs the plan, and the optimizer keeps something."""
    problem = PlacementProblem(with_optimizer(graph_of(4), optimizer), limited(int(0.8 * needed()), "4xv100"))
    ways = ways_that_fit({problem.setting: problem}, [], Runner(tool))
    plans = [way.plan for way in ways if any(len(devices) > 1 for devices in way.plan.devices)]
    assert plans
    assert {max(plan.sharding, default=0) for plan in plans} == {sharded}
    assert {"sharded" in plan.shape(problem.cluster) for plan in plans} == {bool(sharded)}
