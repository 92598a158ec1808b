"""Large steps are planned in the largest number of micro-batches, and in others if they may be faster there."""

from functools import cache

import pytest
import torch

from graphs import llama
from placeto.capture import capture_training
from placeto.errors import CaptureError
from placeto.heuristics.pipelines.plans import least_us
from placeto.planning import variants
from placeto.planning.large_steps import may_be_faster, plan_large
from placeto.planning.planned_steps import PIPELINES, Kind, PlannedStep, Plans
from placeto.planning.runnable import Runner
from placeto.planning.variants import is_large
from placeto.planning.ways import plain_ways, plans_of
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from tests.planning.test_short_memory import limited, variants_of

BATCH, CLUSTER = 8, "2x4xv100"


@cache
def graph_of(count: int) -> ComputationGraph:
    with torch.device("meta"):
        step = llama.training_step(llama.Network(llama.Size(4, 1024, 16, 16, 4096), 512, BATCH))
        return capture_training(step.module, step.inputs, step.loss, targets=step.targets, micro_batches=count)


def planned(memory: int, counts: tuple[int, ...] = (1, 2, 4)) -> tuple[Plans, list[int]]:
    """The ways to run the step on eight devices, and the numbers of micro-batches that were captured."""
    captured = list[int]()

    def noted(count: int) -> ComputationGraph:
        captured.append(count)
        return graph_of(count)

    return plans_of(variants_of(noted, limited(memory, CLUSTER)), counts, simulations=0), captured


@pytest.mark.parametrize("share", [2.0, 0.8])
def test_a_large_step_has_as_many_micro_batches_as_devices(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    free, _ = planned(10**12, (1, 8))
    replicas = next(step for step in free.steps if step.kind == Kind.FULLY_SHARDED)
    memory = int(share * replicas.used)
    usual, _ = planned(memory, (1, 8))
    monkeypatch.setattr(variants, "MOST_OPS", 6 * graph_of(1).num_ops)
    plans, captured = planned(memory)
    assert plans.best.fits
    assert plans.best.micro_batches == 8
    assert plans.best.kind == Kind.FULLY_SHARDED or plans.best.kind in PIPELINES
    assert bool(plans.best.recomputed) == (share < 1.0)
    assert plans.best.step_us <= 1.1 * usual.best.step_us  # in the order of chunks, small ops wait a little longer
    assert captured[:2] == [1, 8]


def test_other_numbers_are_left_out_if_they_can_not_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "MOST_OPS", 6 * graph_of(1).num_ops)
    least = PlacementProblem(graph_of(1), load_cluster(CLUSTER))
    assert [is_large(least, count) for count in (1, 2, 4, 8)] == [False, False, False, True]
    plans, captured = planned(10**12)
    faster = [count for count in (2, 4) if may_be_faster(least, count, plans.best.step_us)]
    assert 2 not in faster
    assert sorted(captured) == sorted([1, 8, *faster])


def test_no_way_is_faster_than_its_number_of_micro_batches_allows() -> None:
    least = PlacementProblem(graph_of(1), load_cluster(CLUSTER))
    for count in (2, 4, 8):
        problem = PlacementProblem(graph_of(count), load_cluster(CLUSTER))
        best_us = min(way.step_us for way in plain_ways({problem.setting: problem}, Runner()))
        assert not may_be_faster(least, count, 0.5 * least_us(least, least.cluster.computing))
        assert may_be_faster(least, count, best_us)


def test_the_fastest_way_whatever_the_memory_is_among_those_that_lack_memory() -> None:
    """All others that are listed lack memory or take 13 % longer, so the cost of the memory would be too small."""

    def fastest(memory: int) -> PlannedStep:
        problem = PlacementProblem(graph_of(8), limited(memory, CLUSTER))
        return min(plain_ways({problem.setting: problem}, Runner()), key=lambda way: way.step_us)

    free = fastest(10**12)
    lacking = fastest(int(0.8 * free.used))
    assert (lacking.step_us, lacking.used, lacking.fits) == (free.step_us, free.used, False)
    assert lacking.placement is not None
    assert not lacking.placement.fits
    assert lacking.room == int(0.8 * free.used)


def test_the_largest_of_several_large_numbers_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "MOST_OPS", 3 * graph_of(1).num_ops)
    on = limited(10**12, CLUSTER)
    large = plan_large(variants_of(graph_of, on), (1, 4, 8), Runner())
    assert {way.micro_batches for way in large.ways} == {8}
    assert large.counts == (1,)


def test_a_number_that_can_not_be_captured_leaves_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "MOST_OPS", 3 * graph_of(1).num_ops)

    def refused(count: int) -> ComputationGraph:
        if count == 8:
            raise CaptureError("no")
        return graph_of(count)

    large = plan_large(variants_of(refused, limited(10**12, "4xv100")), (1, 4, 8), Runner())
    assert {way.micro_batches for way in large.ways} == {4}


@pytest.mark.parametrize("cluster", ["1xv100", "3xv100"])
def test_a_large_step_whose_replicas_and_chunks_find_nothing_is_planned_as_others(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one device it fits by gradient accumulation alone; three devices can't take equally many micro-batches."""
    alone = PlacementProblem(graph_of(8), limited(10**12, "1xv100"))
    memory = int(1.05 * plain_ways({alone.setting: alone}, Runner())[0].used)

    def rows() -> list[tuple[str, int, float]]:
        plans = plans_of(variants_of(graph_of, limited(memory, cluster)), (8, 1), simulations=0)
        return [(step.name, step.micro_batches, step.step_us) for step in plans.steps if step.fits]

    usual = rows()
    assert usual
    monkeypatch.setattr(variants, "MOST_OPS", 3 * graph_of(1).num_ops)
    if cluster == "1xv100":
        assert rows() == usual
    else:
        assert min(us for _, _, us in rows()) <= 1.1 * min(us for _, _, us in usual)
