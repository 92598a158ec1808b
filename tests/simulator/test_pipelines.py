"""Plans that people make by hand, against the arithmetic of textbooks: pipelines in two orders, data parallelism."""

from functools import cache

import numpy as np
import pytest
from torch import nn

from placeto.problem.cluster import load_cluster
from placeto.problem.dispatch import order_of_lists
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate
from tests.captures import Made, linears, meta, training

LAYERS, WIDTH, BATCH = 8, 4096, 65536  # so that transfers are short beside what a stage computes


@cache
def chain(micro_batches: int) -> ComputationGraph:
    """Before the first layer is a factor, so that this one has an input gradient as well: all layers are equal."""
    factor = Made(lambda self, x: x * self.scale, scale=nn.Parameter(meta(1)))
    layers = nn.Sequential(factor, *linears(LAYERS, WIDTH, bias=False, device="meta"))
    return training(layers, meta(BATCH, WIDTH), micro_batches=micro_batches)


def parts(graph: ComputationGraph) -> np.ndarray:
    """(N,) micro-batch of each op; of a sum that of what it adds, of what belongs to all -1."""
    found, sums = graph.micro_batches.copy(), gradient_sums(graph)
    for s in range(len(sums.home)):
        for number in range(1, sums.ptr[s + 1] - sums.ptr[s]):
            found[sums.addition[sums.ptr[s] + number]] = number
    return found


def pipeline(stages: int, micro_batches: int, order: str) -> tuple[Schedule, np.ndarray]:
    """A pipeline of equal stages in the order "gpipe" or "1f1b", and the stage of each op (N,)."""
    graph, cluster = chain(micro_batches), load_cluster("4xa100")
    layer = [int(name.split(".")[0]) if name[:1].isdigit() else LAYERS for name in graph.modules]
    stage = np.maximum(np.array(layer) - 1, 0) * stages // LAYERS
    part, place = parts(graph), np.argsort(graph.topological_order)
    backward = np.array(graph.passes) == "backward"
    lists: list[list[int]] = []
    for device in range(cluster.num_devices):
        ahead = micro_batches if order == "gpipe" else min(stages - device, micro_batches)
        steps = [(False, number) for number in range(ahead)]
        for number in range(micro_batches):
            steps.append((True, number))
            steps += [(False, ahead + number)] if ahead + number < micro_batches else []
        own = [op for op in np.argsort(place).tolist() if stage[op] == device]
        listed = [op for op in own if graph.op_types[op] == "parameter"]
        for back, number in steps:
            listed += [op for op in own if part[op] == number and backward[op] == back]
        lists.append(listed + [op for op in own if op not in set(listed)])
    problem = PlacementProblem(graph, cluster)
    return simulate(problem, stage, order=order_of_lists(graph, lists)), stage


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [4, 16])
@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_takes_what_textbooks_say(stages: int, micro_batches: int, order: str) -> None:
    schedule, stage = pipeline(stages, micro_batches, order)
    problem = schedule.problem
    total = problem.busy_us[np.arange(problem.num_ops), stage].sum()
    ideal = (micro_batches + stages - 1) / micro_batches * total / stages
    tensor = BATCH // micro_batches * WIDTH * 4
    transfer = problem.cluster.latency_us[0, 1] + tensor / problem.cluster.bandwidth[0, 1]
    assert ideal <= schedule.makespan_us
    assert schedule.makespan_us <= 1.03 * (ideal + 2 * (stages - 1) * transfer)  # forward and back

    # by hand: the input of each layer, of as many micro-batches as are between their two passes
    live = (schedule.peak_memory - np.bincount(stage, problem.resident_bytes, problem.num_devices)) / tensor
    held = [micro_batches if order == "gpipe" else min(stages - s, micro_batches) for s in range(stages)]
    weight = WIDTH * WIDTH * 4 / tensor  # a gradient that isn't added yet
    for s in range(stages):
        least = held[s] * LAYERS // stages
        assert least <= live[s] + 1
        assert live[s] <= least + 3 + weight  # and what is computed and received


def test_free_orders_can_alternate_between_passes() -> None:
    """Nothing keeps the backward pass of a micro-batch from running before the forward pass of the last one."""
    schedule, _ = pipeline(4, 16, "1f1b")
    graph, part = schedule.problem.graph, schedule.problem.graph.micro_batches
    forward = np.array(graph.passes) == "forward"
    assert schedule.finish_us[~forward & (part == 0)].max() < schedule.start_us[forward & (part == 15)].max()


@pytest.mark.parametrize("cluster", ["4xa100", "4xv100"])
def test_data_parallelism_takes_compute_and_what_is_not_hidden_of_the_all_reduce(cluster: str) -> None:
    graph, machine = chain(8), load_cluster(cluster)
    problem, devices = PlacementProblem(graph, machine), machine.num_devices
    placement = np.where(graph.micro_batches >= 0, graph.micro_batches % devices, 0)
    for number, colour in enumerate(sorted(set(graph.colocation[graph.colocation >= 0].tolist()))):
        placement[graph.colocation == colour] = number % devices  # homes are spread
    schedule = simulate(problem, placement)
    compute = problem.single_device_us / devices
    links = machine.bandwidth[~np.eye(devices, dtype=bool)]
    reduced = 2 * (devices - 1) / devices * graph.param_bytes.sum() / links.min()
    assert 0.99 * compute <= schedule.makespan_us <= 1.05 * (compute + reduced)
    # half of it, the copies of parameters, can be hidden behind nothing but the first layers
    assert schedule.makespan_us <= 1.05 * compute + reduced
