"""Ways to run a step, each in its best number of micro-batches and order."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import placeto
from placeto.capture.trace import capture_training
from placeto.errors import CaptureError, ClusterError, PlanError
from placeto.heuristics import HEURISTICS
from placeto.heuristics.pipelines.plans import all_plans
from placeto.planning import single_ways, ways
from placeto.planning.model_plans import plan
from placeto.planning.planned_steps import Kind, PlannedStep, Plans
from placeto.planning.variants import COUNTS, Variants, with_headroom
from placeto.planning.ways import SHOWN, plans_of
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.costs import EFFICIENCY
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.captures import Made, chained, linears, meta, square
from tests.cases import with_devices

BATCH = 4096
WITH_REPLICAS = {Kind.REPLICAS, Kind.SHARDED, Kind.GRADIENTS_SHARDED, Kind.FULLY_SHARDED}


def chain() -> tuple[nn.Module, list[torch.Tensor]]:
    return linears(8, 1024, bias=False, device="meta"), [meta(BATCH, 1024)]


@cache
def graph_of(count: int, samples: int, width: int) -> ComputationGraph:
    """The chain's step."""
    return chained(8, 1024, samples, count, bias=False)


def planned(cluster: Cluster | str, micro_batches: Sequence[int] = COUNTS, batch: int = BATCH, **options: Any) -> Plans:
    """Ways to run the chain, without a search."""
    on = load_cluster(cluster) if isinstance(cluster, str) else cluster
    return plans_of(Variants(graph_of, on, EFFICIENCY, batch), micro_batches, **{"simulations": 0} | options)


def test_a_host_that_launches_slowly_is_warned_of_and_counts() -> None:
    cluster = load_cluster("4xv100")
    hosts = with_devices(cluster, launch_us=500.0)
    found, slow = (planned(each, batch=512).best for each in (cluster, hosts))
    assert found.launch_warning.startswith(" A device runs ")
    assert " ops in a step: if its host " in found.launch_warning
    assert found.micro_batches > slow.micro_batches
    for step in found, slow:
        ran = step.schedule.placement[step.schedule.finish_us > step.schedule.start_us]
        launches_us = 500.0 * (int(np.bincount(ran).max()) - 1)
        assert (step.step_us >= launches_us) == (step is slow)
    assert slow.launch_warning == ""
    searched = planned(hosts, (1, 4), batch=512, simulations=50)
    alone, whole = (next(step for step in searched.steps if step.kind == kind) for kind in (Kind.ONE, Kind.WHOLE))
    assert whole.step_us > alone.step_us > whole.result.makespan_us, "one process launches the ops of all devices"
    assert searched.best.kind not in (Kind.WHOLE, Kind.FREE)
    first_slow = replace(cluster, devices=(hosts.devices[0], *cluster.devices[1:]))
    alone = next(step for step in planned(first_slow, (1,), batch=512).steps if step.kind == Kind.ONE)
    assert alone.result.placement[0] == 1
    beside = load_cluster("cpu-laptop+1xrtx3090")
    beside = replace(beside, devices=(replace(beside.devices[0], memory=10**8), beside.devices[1]))
    pipeline = next(step for step in planned(beside, (2,), batch=64).steps if step.kind == Kind.PIPELINE)
    assert pipeline.device.is_cpu, "the fullest device"
    assert pipeline.launch_warning.startswith(" A device runs ")


@pytest.fixture(scope="module")
def plans() -> Plans:
    module, inputs = chain()
    return placeto.plan(module, inputs, cluster="2x4xv100", loss=square, simulations=150)


def test_all_ways_are_there_best_first(plans: Plans) -> None:
    kinds = [step.kind for step in plans.steps]
    assert {*kinds} - {Kind.FREE} == {Kind.ONE, Kind.WHOLE, *WITH_REPLICAS, Kind.PIPELINE, Kind.INTERLEAVED}
    others = min(step.step_us for step in plans.steps if step.kind != Kind.FREE)
    assert (Kind.FREE in kinds) == (plans.best.step_us < 0.995 * others)
    assert ("found none" in plans.advice()) == (Kind.FREE not in kinds)
    assert max(kinds.count(kind) for kind in kinds) <= SHOWN
    assert plans.best is plans.steps[0]
    times = [float(f"{step.step_us:.4g}") for step in plans.steps if step.fits]
    assert times == sorted(times)
    assert not plans.left_out


def test_each_way_is_a_placement_that_is_simulated(plans: Plans) -> None:
    for step in plans.steps:
        result, used = step.result, len(set(step.result.placement.tolist()))
        assert (used == 1) == (step.kind == Kind.ONE)
        assert result.schedule().makespan_us == step.step_us
        assert simulate(result.problem, result.placement, order=result.order).makespan_us == step.step_us
        if step.kind in (Kind.PIPELINE, Kind.INTERLEAVED) and used < 8:
            assert step.shape.endswith(f" on {used} devices")
        assert plans.samples_per_second(step) == pytest.approx(BATCH / (step.step_us * 1e-6))
        assert 0.0 <= step.idle < 1.0
        assert (step.sent_bytes == 0) == (step.kind == Kind.ONE)


def test_of_devices_that_are_alike_one_is_tried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()

    def one_device(problem: PlacementProblem, device: int, *given: Any) -> PlannedStep:
        tried.append(device)
        return single_ways.one_device(problem, device, *given)

    monkeypatch.setattr(ways, "one_device", one_device)
    small = with_devices("2xv100+2xp100", memory=10**6)
    first = {device.kind: number for number, device in reversed([*enumerate(small.devices)])}
    planned(small, (1,))
    assert set(tried) == {*first.values()}


def test_none_is_slower_than_the_best_plan_of_its_number(plans: Plans) -> None:
    for count in (8, 16):
        alone = HEURISTICS["pipeline"](PlacementProblem(graph_of(count, BATCH, 1), load_cluster("2x4xv100")))
        assert plans.best.step_us <= alone.makespan_us


def test_what_devices_hold(plans: Plans) -> None:
    by_kind = {step.kind: step for step in reversed(plans.steps)}
    whole = 8 * 4 * 1024**2
    for kind, state in ((Kind.ONE, 2 * whole), (Kind.REPLICAS, 2 * whole), (Kind.SHARDED, 2 * whole)):
        memory, parts = by_kind[kind].memory, int(by_kind[kind].shape.split()[0]) if kind == Kind.SHARDED else 1
        assert (memory["weights"], memory["gradients"], memory["optimizer"]) == (whole, whole, state / parts)
        assert memory["received"] == 0
    sharded, replicas = by_kind[Kind.SHARDED], by_kind[Kind.REPLICAS]
    assert (sharded.step_us, sharded.shape) == (replicas.step_us, replicas.shape)
    assert sharded.memory["activations"] == replicas.memory["activations"] > 0
    for step in plans.steps:
        if step.kind not in (Kind.REPLICAS, Kind.SHARDED):
            peak = step.schedule.peak_memory
            assert step.used == peak.max()
            assert step.room == 16e9


def test_replicas_hold_the_most_activations_at_any_time() -> None:
    """Also where more is received when gradients are summed: the outputs of two layers, (32, 256), and their sum."""
    one, other = linears(2, 256, bias=False, device="meta")
    module = Made(lambda self, x: self.a(x) + self.b(x), a=one, b=other)
    found = plan(module, [meta(64, 256)], cluster="2xv100", loss=torch.sum, micro_batches=[2], simulations=0)
    replicas = [step for step in found.steps if step.kind == Kind.REPLICAS]
    assert [step.memory["activations"] for step in replicas] == [3 * 4 * 32 * 256]


def test_a_stage_of_the_loss_alone_is_no_stage() -> None:
    """torch computes the loss with the last module, so that a device would have nothing to do."""
    module, x, cluster = linears(3, 256, bias=False, device="meta"), meta(32, 256), load_cluster("4xv100")
    cluster = replace(cluster, bandwidth=np.full((4, 4), 1e9), shared_links=())
    found = plan(module, [x], cluster=cluster, loss=torch.sum, micro_batches=[4], simulations=0)
    pipelines = [step for step in found.steps if step.kind in (Kind.PIPELINE, Kind.INTERLEAVED)]
    assert pipelines
    for step in pipelines:
        graph = step.placed.problem.graph
        busy = set(step.placed.placement[graph.micro_batches >= 0].tolist())
        assert busy == {device for stage in step.placed.plan.devices for device in stage}


def test_copies_in_16_bits_are_made_where_the_parameter_is() -> None:
    module, inputs = chain()
    graph = capture_training(module, inputs, square, micro_batches=2, precision="bf16")
    problem = PlacementProblem(graph, load_cluster("2xv100"))
    for one in all_plans(problem):
        placement = one.placement(problem)
        casts = [
            (src, dst)
            for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True)
            if graph.op_types[src] == "parameter" and graph.micro_batches[dst] == -1
        ]
        assert len(casts) >= 8
        assert all(placement[src] == placement[dst] for src, dst in casts)


def test_only_devices_that_compute_are_looked_at() -> None:
    cluster = load_cluster("cpu+1xh100")
    for step in planned(cluster, [1, 4], 64).steps:
        used = sorted(set(step.result.placement.tolist()))
        assert step.used > 0
        assert step.room in cluster.memory[used].tolist()
        assert step.kind == Kind.ONE or len(used) > 1


def test_the_fullest_device_uses_the_largest_share_of_its_memory() -> None:
    small, large = load_cluster("2xv100").devices
    cluster = replace(load_cluster("2xv100"), devices=(replace(small, memory=10**7), replace(large, memory=10**8)))
    pipelines = [step for step in planned(cluster, [4], 64).steps if step.kind == Kind.PIPELINE]
    for step in pipelines:
        share = step.schedule.peak_memory / cluster.memory
        assert step.used / step.room == pytest.approx(share.max())
    assert pipelines


def test_the_next_way_is_told_with_its_ratio_and_as_the_best_of_another_kind_if_it_is_not_the_next_row(
    plans: Plans,
) -> None:
    one = next(step for step in plans.steps if step.kind == Kind.ONE)
    ratio = one.step_us / plans.best.step_us
    assert ratio > 2.0
    assert f"Next is {one.name}: {ratio:.2f} times as long" in Plans((plans.best, one), {}).advice()
    assert f"The best way of another kind is {one.name}: " in Plans((plans.best, plans.best, one), {}).advice()


def test_what_has_not_the_memory_comes_last_and_is_told() -> None:
    whole = 8 * 4 * 1024**2
    small = with_devices("4xv100", memory=3 * whole)
    found = planned(small)
    fits = [step.fits for step in found.steps]
    assert fits == sorted(fits, reverse=True)
    assert {step.fits for step in found.steps if step.kind in (Kind.ONE, Kind.REPLICAS)} == {False}
    assert found.best.fits
    assert "one device lacks the memory for it" in found.advice()
    assert "too little" in str(found)
    assert "None of these fits" in planned(with_devices(small, memory=whole // 8), [4]).advice()


def test_headroom_is_left_free() -> None:
    cluster = load_cluster("2xv100")
    assert with_headroom(cluster, 10**9).memory.tolist() == [15 * 10**9] * 2
    assert with_headroom(cluster, 0).hash == cluster.hash
    with pytest.raises(ClusterError, match=r"headroom of 16\.0 GB"):
        with_headroom(cluster, 16 * 10**9)
    with pytest.raises(ClusterError, match="a headroom of -1 bytes would add memory"):
        with_headroom(cluster, -1)


def test_numbers_that_do_not_divide_the_batch_are_left_out() -> None:
    found = planned("2xv100", [2, 4], 6)
    assert list(found.left_out) == [4]
    assert {step.micro_batches for step in found.steps} == {2}
    with pytest.raises(CaptureError, match="can't be split into 4"):
        planned("2xv100", [4], 6)
    with pytest.raises(CaptureError, match="has no samples"):
        plan(nn.Linear(8, 8), [torch.empty(0, 8)], cluster="2xv100", loss=torch.sum)
    with pytest.raises(CaptureError, match="trainable"):  # the first reason of all numbers
        plan(nn.ReLU(), [torch.empty(8, 4, device="meta")], cluster="2xv100", loss=square)
    with pytest.raises(PlanError, match="at least one"):
        planned("2xv100", [], 6)
    with pytest.raises(PlanError, match="simulations must be at least 0, not -1"):
        planned("2xv100", [1], 6, simulations=-1)


def test_on_one_device_there_is_one_way() -> None:
    two = load_cluster("2xv100")
    cluster = Cluster("one", two.devices[:1], two.bandwidth[:1, :1], two.latency_us[:1, :1])
    assert {step.kind for step in planned(cluster, batch=8).steps} == {Kind.ONE}


def test_plans_for_torch_deal_micro_batches_evenly() -> None:
    free, even = (planned("2xv100+2xp100", [8], runnable_by=by) for by in (None, "torch"))
    assert any(step.shape.startswith("stages of") for step in free.steps)
    assert len(even.steps) > 1
    for step in even.steps:
        assert not step.shape.startswith("stages of")
        graph = step.result.problem.graph
        ops = [np.flatnonzero(graph.micro_batches == part) for part in range(8)]
        shares = np.unique([step.result.placement[part].max() for part in ops], return_counts=True)[1]
        assert step.kind == Kind.ONE or len(set(shares.tolist())) == 1


def whole_modules(problem: PlacementProblem, memory: int) -> PlannedStep:
    """The way in whole modules if each device has this memory."""
    tight = replace(problem, cluster=with_devices(problem.cluster, memory=memory))
    (step,) = single_ways.whole_modules(tight)
    return step


def test_whole_modules_are_one_after_the_other(plans: Plans) -> None:
    """They are on the fewest devices on which they fit: with more, the step takes longer."""
    one, step = (next(step for step in plans.steps if step.kind == kind) for kind in (Kind.ONE, Kind.WHOLE))
    assert step.shape == "on 2 devices"
    problem = step.result.problem
    for shape, fits in (("on 4 devices", True), ("on 8 devices", True), ("on 8 devices", False)):
        step = whole_modules(problem, step.used - 1)
        assert (step.shape, step.fits) == (shape, fits)
        graph, placement = step.result.problem.graph, step.result.placement
        for layer in map(str, range(8)):
            assert len({int(placement[op]) for op, path in enumerate(graph.modules) if path == layer}) == 1
        assert (step.micro_batches, step.order, step.run_by) == (1, "program", "accelerate")
        assert one.step_us < step.step_us
        assert step.memory["weights"] < one.memory["weights"]
        assert ("accelerate, on one host only" in str(replace(plans, steps=(step,)))) == (shape == "on 8 devices")


def test_what_runs_each_way(plans: Plans) -> None:
    by_kind = {step.kind: step.run_by for step in plans.steps}
    assert by_kind[Kind.ONE] == "PyTorch"
    assert by_kind[Kind.REPLICAS] == "torch DDP"
    assert by_kind[Kind.GRADIENTS_SHARDED] == by_kind[Kind.FULLY_SHARDED] == "torch FSDP"
    for step in plans.steps:
        if step.kind == Kind.FREE or step.shape.startswith("stages of"):
            assert step.run_by == "placeto run"
        elif step.kind == Kind.PIPELINE:
            assert step.run_by == "torch-pipeline"


def test_each_way_has_a_file(plans: Plans) -> None:
    stages = {Kind.SHARDED: 1, Kind.GRADIENTS_SHARDED: 2, Kind.FULLY_SHARDED: 3}
    hashes = dict[tuple[int, int], set[str | None]]()
    for step in plans.steps:
        file, stage = step.file(load_cluster("2x4xv100"), BATCH), stages.get(step.kind, 0)
        assert (file.kind, file.memory, file.room) == (step.kind, step.memory, step.room)
        assert (file.placement is None) == (stage > 1)
        hashes.setdefault((step.micro_batches, step.width), set()).add(file.graph_hash)
        if file.placement is not None:
            assert file.graph_hash == file.placement.graph_hash, "nothing is recomputed"
            assert len(file.placement.placement) == step.placed.problem.num_ops
        if step.kind in WITH_REPLICAS:
            assert [one.get("sharding", 0) for one in file.plan["stages"]] == [stage]
    assert all(len(found) == 1 and None not in found for found in hashes.values())


def test_replicas_are_not_sent_what_is_not_trained() -> None:
    module, inputs = chain()
    module[:6].requires_grad_(False)  # type: ignore[index]
    found = plan(module, inputs, cluster="2xv100", loss=square, micro_batches=[2], simulations=0)
    layer = 4 * 1024**2
    by_kind = {step.kind: step for step in found.steps}
    assert by_kind[Kind.REPLICAS].sent_bytes == pytest.approx(2 * 2 * layer, abs=16)
    assert by_kind[Kind.REPLICAS].memory["weights"] == 8 * layer
    assert by_kind[Kind.REPLICAS].memory["gradients"] == 2 * layer
    assert by_kind[Kind.FULLY_SHARDED].sent_bytes > by_kind[Kind.REPLICAS].sent_bytes + 6 * layer


def test_whole_modules_run_in_several_micro_batches_where_one_does_not_fit() -> None:
    whole = next(step for step in planned("2xv100", [1]).steps if step.kind == Kind.WHOLE)
    tight = with_devices("2xv100", memory=whole.used * 3 // 4)
    found = next(step for step in planned(tight, [1, 2, 4]).steps if step.kind == Kind.WHOLE)
    assert (found.fits, found.micro_batches, found.run_by) == (True, 2, "accelerate")
    assert found.memory["weights"] == whole.memory["weights"]
    assert found.memory["activations"] < whole.memory["activations"] * 2 / 3


def test_of_ways_that_take_equally_long_the_one_with_less_memory_is_first() -> None:
    steps = planned("2xv100", [2]).steps
    kinds = [step.kind for step in steps]
    replicas, sharded = (next(step for step in steps if step.kind == kind) for kind in (Kind.REPLICAS, Kind.SHARDED))
    assert replicas.step_us == sharded.step_us
    assert kinds.index(Kind.SHARDED) < kinds.index(Kind.REPLICAS)


def test_tools_of_one_host_are_named_as_such(plans: Plans) -> None:
    for step in plans.steps:
        hosts = {device // 4 for device in step.result.placement.tolist()}
        assert step.only_on_one_host == (len(hosts) == 2 and step.run_by in ("accelerate", "placeto run"))
    on_two = next(step for step in plans.steps if step.kind == Kind.WHOLE)
    on_four = whole_modules(on_two.result.problem, on_two.used - 1)
    free = replace(plans, steps=(whole_modules(on_two.result.problem, on_four.used - 1), *plans.steps))
    assert free.best.only_on_one_host
    assert f" {free.best.run_by} runs on the devices of one host only; on several hosts " in free.advice()


def test_one_micro_batch_a_device_is_tried_where_nothing_else_fits() -> None:
    cluster = load_cluster("4xv100")
    devices = tuple(replace(device, memory=4 * 8 * 4 * 1024**2 * 3 // 10) for device in cluster.devices[:3])
    three = Cluster("three", devices, cluster.bandwidth[:3, :3], cluster.latency_us[:3, :3])
    assert {batch: planned(three, [1], batch).tried for batch in (96, 64)} == {96: (1, 3), 64: (1,)}
    assert any(step.kind == Kind.FULLY_SHARDED for step in planned(three, [1], 96).steps)
    assert "FSDP, which needs a batch that 3 divides" in planned(three, [1], 64).advice()
