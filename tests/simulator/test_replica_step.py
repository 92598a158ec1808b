"""Data parallelism with all parameters on each device, or parts of them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from placeto.capture.trace import capture_training
from placeto.problem.cluster import Cluster, Device, Link, Topology, load_cluster
from placeto.problem.costs.collectives import SHARE, START_US, collective_us
from placeto.problem.problem import PlacementProblem
from placeto.simulator.readings.memory_timeline import GATHER, SCATTER, peak_by_category
from placeto.simulator.schedule import Schedule, simulate
from placeto.simulator.tool_steps.replica_step import replicated
from tests.toys import linked

LAYERS, WIDTH = 4, 256
WHOLE = LAYERS * WIDTH * WIDTH * 4  # bytes


def chain(layers: int = LAYERS, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(layers)))


def step(cluster: Cluster, module: nn.Module, count: int, batch: int = 32, **how: object) -> PlacementProblem:
    weight = next(module.parameters())
    inputs = [torch.empty(batch, weight.shape[1], dtype=weight.dtype, device="meta")]
    graph = capture_training(module, inputs, lambda y: y.square().mean(), micro_batches=count, **how)  # type: ignore[arg-type]
    return PlacementProblem(graph, cluster)


def run(problem: PlacementProblem, devices: Sequence[int], stage: int) -> Schedule:
    return simulate(*replicated(problem, devices, stage))


def sent(schedule: Schedule) -> np.ndarray:
    """(S,) bytes of each transfer."""
    return schedule.lowering.flat.tensor_bytes[schedule.send_tensor]


def boards(devices: int, rate: float) -> Cluster:
    """Each with a link of so many bytes a second."""
    kind = Device("gpu:0", "v100", 15.7e12, 9e11, 16 * 10**9, 5.0)
    return linked([replace(kind, name=f"gpu:{number}") for number in range(devices)], rate / 1e6)


@pytest.mark.parametrize(("stage", "times"), [(1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("devices", [2, 4])
def test_bytes_and_time_where_links_decide(stage: int, times: int, devices: int) -> None:
    rate = 1e6  # a byte a microsecond
    schedule = run(step(boards(devices, rate), chain(), devices), range(devices), stage)
    each = times * WHOLE * (devices - 1) / devices
    for device in range(devices):
        losses = 8 * devices
        assert sent(schedule)[schedule.send_src == device].sum() == pytest.approx(each, abs=losses)
    assert schedule.makespan_us == pytest.approx(each / (SHARE * rate) * 1e6, rel=0.01)


def test_on_links_that_are_fast_the_first_and_the_last_collective_begin_while_nothing_is_computed() -> None:
    problem = step(boards(4, 1e18), chain(), 4, 65_536)
    busy = problem.busy_us[problem.graph.micro_batches == 0, 0].sum()
    for stage, begun in ((1, 1), (2, 2), (3, 2)):  # in stage 1 both halves of an all-reduce
        schedule = run(problem, range(4), stage)
        waits_us = schedule.makespan_us - schedule.busy_us.max()
        assert schedule.busy_us.max() == pytest.approx(busy, rel=0.01)
        assert 0.5 * begun * START_US < waits_us < begun * START_US


@pytest.mark.parametrize("link", ["egress", "pair"])
@pytest.mark.parametrize(("count", "rate"), [(2, 1e9), (4, 1e11), (8, 1e9), (8, 1e12)])
def test_collectives_take_what_their_model_says(link: str, count: int, rate: float) -> None:
    """By pairs a rank sends all shares at once, so that they take the time of one hop and of one share."""
    cluster = replace(boards(count, rate), link=link, latency_us=np.full((count, count), 8.0))
    at_once = count - 1 if link == "pair" else 1
    for stage, kind in ((1, "all_reduce"), (2, "all_gather")):
        links = rate / 1e6 * at_once, 8.0 / at_once
        schedule = run(step(cluster, chain(1, 1024), count), range(count), stage)
        begun = {
            kind: schedule.start_us[np.array(schedule.problem.graph.op_types) == kind] for kind in (SCATTER, GATHER)
        }
        took = begun[GATHER].max()
        if stage == 1:  # half of it, the sums of gradients, is behind the backward pass
            took += schedule.makespan_us - begun[SCATTER].max()
        assert took == pytest.approx(collective_us(kind, 4 * 1024 * 1024, count, *links), rel=0.01, abs=1.0)


def test_cores_add_up_what_has_come_and_have_all_of_a_link() -> None:
    """As gloo does; the collectives of GPUs are NCCL's."""
    cluster = boards(2, 1e9)
    cores = replace(cluster, devices=tuple(replace(each, kind="cpu") for each in cluster.devices))
    gpus, cpus = (run(step(each, chain(1, 1024), 2), range(2), 1) for each in (cluster, cores))
    assert cpus.problem.cluster.bandwidth[0, 1] == 1e3
    for schedule, additions in ((gpus, 0), (cpus, 2)):
        graph = schedule.problem.graph
        summed = [op for op, name in enumerate(graph.op_names) if "part of gradients" in name]
        assert (schedule.finish_us > schedule.start_us)[summed].sum() == additions


def test_memory_of_parts() -> None:
    problem = step(boards(4, 1e11), chain(), 4)
    layer = WHOLE // LAYERS
    weights = {1: WHOLE, 2: WHOLE // 4 + WHOLE, 3: WHOLE // 4 + 2 * layer}
    for stage, most in weights.items():
        schedule = run(problem, range(4), stage)
        for device in range(4):
            memory = peak_by_category(schedule, device)
            assert sum(memory.values()) == schedule.peak_memory[device]
            assert memory["optimizer"] == 2 * WHOLE // (1 if stage == 1 else 4)
            assert layer < memory["weights"] <= most
            assert stage == 1 or memory["gradients"] <= WHOLE // 4 + 2 * layer


@pytest.mark.parametrize(("stage", "most"), [(2, LAYERS), (3, 2)])
def test_so_many_units_are_gathered_at_a_time(stage: int, most: int) -> None:
    schedule = run(step(boards(4, 1e11), chain(), 4, 65_536), range(4), stage)
    graph = schedule.problem.graph
    lives = []
    for op in np.flatnonzero(np.array(graph.op_types) == GATHER).tolist():
        if schedule.placement[op] == 0:
            users = graph.edge_dst[graph.edge_src == op]
            lives.append((schedule.start_us[op], schedule.finish_us[users].max()))
    assert len(lives) == LAYERS * (stage - 1)
    assert schedule.makespan_us < 1.2 * schedule.busy_us.max()
    assert max(sum(begin <= at < end for begin, end in lives) for at, _ in lives) == most


def test_the_figures_of_zero() -> None:
    """7.5 billion parameters under mixed Adam on 64 devices: 120 GB each, and 1.9 GB in stage 3 (Figure 1 there)."""
    module = chain(2, 61_237, torch.bfloat16)
    problem = step(load_cluster("8x8xh100"), module, 64, 64, master_weights=True)
    for stage, resident in ((1, 120e9), (3, 1.9e9)):
        made, placement = replicated(problem, range(64), stage)
        each = np.bincount(placement, made.resident_bytes, 64)
        assert each == pytest.approx(np.full(64, resident), rel=0.02)


def test_hosts_are_reached_once() -> None:
    cluster = load_cluster("2x4xv100")
    problem, host = step(cluster, chain(), 8), cluster.host
    for stage, times in ((1, 2), (2, 2), (3, 3)):
        schedule = run(problem, range(8), stage)
        crossing = host[schedule.send_src] != host[schedule.send_dst]
        assert sent(schedule)[crossing].sum() == pytest.approx(times * WHOLE, abs=64)
        assert sent(schedule).sum() == pytest.approx(times * WHOLE * 7, abs=64)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(("hosts", "each"), [(4, 1), (4, 2), (8, 4)])
@pytest.mark.parametrize("latency_us", [0.0, 50.0])
def test_hosts_send_round_a_ring(stage: int, hosts: int, each: int, latency_us: float) -> None:
    """It takes 2 (H - 1) / H of the bytes over the rate of a card."""
    rate = 1e6
    kind = Device("gpu:0", "v100", 15.7e12, 9e11, 16 * 10**9, 5.0)
    names = [replace(kind, name=f"gpu:{number}") for number in range(hosts * each)]
    topology = Topology(
        ((each,),) * hosts, island=Link(1e12, latency_us), network=Link(rate, latency_us), card=Link(rate)
    )
    cluster = Cluster.from_topology("hosts", names, topology)
    schedule = run(step(cluster, chain(16), hosts * each), range(hosts * each), stage)
    ring = 2 * (hosts - 1) / hosts * 16 * WIDTH * WIDTH * 4 / (SHARE * rate) * 1e6
    assert ring * 0.999 < schedule.makespan_us < 1.02 * ring


def test_what_is_not_trained_is_never_sent_to_whole_replicas() -> None:
    module = chain()
    for layer in module[:-1]:
        layer.requires_grad_(False)
    problem = step(boards(4, 1e11), module, 4)
    whole, divided = (run(problem, range(4), stage) for stage in (1, 3))
    layer_bytes = WHOLE // LAYERS
    assert sent(whole).sum() == pytest.approx(2 * 3 * layer_bytes, abs=64)
    assert {peak_by_category(whole, device)["weights"] for device in range(4)} == {WHOLE}
    # the backward pass reads the weights of no other layer than the last
    assert sent(divided).sum() == pytest.approx(3 * (WHOLE + 2 * layer_bytes), abs=64)


def test_copies_in_16_bits_are_gathered_as_such() -> None:
    problem = step(boards(4, 1e11), chain(), 4, precision="bf16")
    whole, divided = (sent(run(problem, range(4), stage)).sum() for stage in (1, 3))
    assert whole == pytest.approx(2 * 3 * WHOLE, abs=64)
    assert divided == pytest.approx(3 * (WHOLE / 2 + WHOLE / 2 + WHOLE), abs=64)


def test_further_micro_batches_gather_again_where_parameters_are_divided() -> None:
    problem = step(boards(2, 1e11), chain(), 4)
    once, twice = (run(problem, [0, 1, 0, 1], stage) for stage in (1, 3))
    assert sent(once).sum() == pytest.approx(2 * WHOLE, abs=64)
    assert sent(twice).sum() == pytest.approx(2 * 3 * WHOLE, abs=64)
    graph, made = problem.graph, twice.problem.graph
    for micro_batch in range(4):
        own = np.flatnonzero(graph.micro_batches == micro_batch).tolist()
        assert {int(twice.placement[made.index[graph.op_names[op]]]) for op in own} == {micro_batch % 2}
        start = [twice.start_us[made.index[graph.op_names[op]]] for op in own]
        assert start == sorted(start)
    uneven = run(problem, [0, 0, 0, 1], 1)
    assert uneven.busy_us[0] > 2 * uneven.busy_us[1]
    with pytest.raises(ValueError, match="take turns"):
        replicated(problem, [0, 0, 0, 1], 3)
