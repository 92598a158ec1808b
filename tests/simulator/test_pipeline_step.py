"""What torch takes for plans of a chain of layers, beside what the plans take op by op."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor, nn

from placeto.formats.exports import torch_pipeline
from placeto.problem.cluster import STATIC_ORDERS, Cluster
from placeto.problem.costs.collectives import collective_us
from placeto.problem.costs.profiled import Fit, Profiled
from placeto.problem.graph.graph_memory import with_optimizer
from placeto.problem.graph.label_values import NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem
from placeto.simulator.readings.memory_timeline import RECEIVE
from placeto.simulator.schedule import Schedule, simulate
from placeto.simulator.tool_steps.chunk_order import order_chunks
from placeto.simulator.tool_steps.pipeline_step import CHUNK, SPLIT, SUM
from tests.formats.torch_toys import WIDTH, captured, chain, planned

GRAPH = with_optimizer(captured(chain(8), 8), "adam")
LAYER = 4 * (WIDTH * WIDTH + WIDTH)  # bytes


def sent_bytes(schedule: Schedule) -> int:
    return int(schedule.lowering.flat.tensor_bytes[schedule.send_tensor].sum())


def test_without_replicas_the_step_is_that_of_the_chunks_and_a_division() -> None:
    made = torch_pipeline(planned(GRAPH, [(0,), (1,)]))
    chunks, step = made.order.schedule, made.step
    assert sent_bytes(step) == sent_bytes(chunks)
    assert 1.0 < step.makespan_us / chunks.makespan_us < 1.01
    assert (step.peak_memory[:2] <= chunks.peak_memory[:2]).all()  # gradients are added as they come
    assert step.peak_memory[0] > 16 * LAYER
    added = [name for name in step.problem.graph.op_names if name not in GRAPH.index]
    assert len([name for name in added if name.endswith(" divided on gpu:0")]) == 1
    sums = [name for name in added if " of " in name and "divided" not in name]
    assert len(sums) == 16 * 7  # parameters, and micro-batches after the first


@pytest.mark.parametrize("devices", [[(0,), (1,)], [(0,), (1,), (2,), (3,)], [(0, 2), (1, 3)]])
def test_of_orders_that_take_equally_long_the_one_with_the_least_memory_is_taken(
    devices: list[tuple[int, ...]],
) -> None:
    schedule = planned(GRAPH, devices)
    problem, plan = schedule.problem, schedule.plan
    each = [simulate(problem.under(order), schedule.placement, plan=plan) for order in STATIC_ORDERS]
    found = [order_chunks(one).schedule for one in each]
    fastest = min(one.makespan_us for one in found)
    least = min(one.peak_memory.max() for one in found if one.makespan_us < fastest * 1.000001)
    best = torch_pipeline(each[0]).order.schedule
    assert (best.makespan_us, best.peak_memory.max()) == (pytest.approx(fastest), least)
    assert found[0].peak_memory.max() >= least


@pytest.mark.parametrize("devices", [[(0, 1), (2, 3)], [(0, 2), (1, 3), (0, 2), (1, 3)], [(0, 1, 2, 3)]])
def test_replicas_that_share_out_the_state_of_adam_keep_less_and_take_as_long(devices: list[tuple[int, ...]]) -> None:
    schedule = planned(GRAPH, devices)
    assert schedule.plan is not None
    alike = replace(schedule, plan=schedule.plan.sharing_out())
    all_of_it, part = (torch_pipeline(each).step for each in (schedule, alike))
    assert part.makespan_us == all_of_it.makespan_us
    count, layers = len(devices[0]), 8 // len({row[0] for row in devices})
    saved = 2 * layers * LAYER * (count - 1) // count  # of the two numbers that Adam keeps of each weight
    assert (all_of_it.peak_memory - part.peak_memory).tolist() == 4 * [saved]


@pytest.mark.parametrize("devices", [[(0, 1), (2, 3)], [(0, 2), (1, 3), (0, 2), (1, 3)], [(0, 1, 2, 3)]])
def test_replicas_keep_their_stages_and_send_gradients_alone(devices: list[tuple[int, ...]]) -> None:
    step = torch_pipeline(planned(GRAPH, devices)).step
    graph, count, each = step.problem.graph, len(devices[0]), 8 // len({row[0] for row in devices})
    received = np.array([kind == RECEIVE for kind in graph.op_types])
    assert (
        graph.param_bytes[received].sum() == 8 * (len(devices) - 1) * 2 * 8 * WIDTH * 4
    )  # both ways, each micro-batch
    held = np.bincount(step.placement, np.where(received, 0, graph.param_bytes + graph.state_bytes), 4)
    assert held.tolist() == 4 * [4 * each * LAYER]  # weight, gradient, two numbers of Adam
    between = 8 * (len(devices) - 1) * 2 * 8 * WIDTH * 4  # activations and their gradients
    around = 2 * (count - 1) * 8 * LAYER
    assert sent_bytes(step) == pytest.approx(between + around, abs=64)
    rings = np.array(["part " in name for name in graph.op_names])
    computed = graph.micro_batches != NO_MICRO_BATCH
    for device in range(4):
        own = step.placement == device
        assert step.start_us[own & rings].min() >= step.finish_us[own & computed].max()


def test_a_ring_takes_its_transfers_and_additions() -> None:
    for measured in (False, True):
        schedule = _on_cores([(0, 1, 2, 3)], measured)
        step = torch_pipeline(schedule).step
        (ring,) = {name.partition(",")[0] for name in step.problem.graph.op_names if "part " in name}
        own = [op for op, name in enumerate(step.problem.graph.op_names) if name.startswith(f"{ring}, ")]
        took = step.finish_us[own].max() - max(step.start_us[op] for op in own[:4])
        part = 8 * LAYER / 4
        addition = 16 * 10.0 + 0.01 * part if measured else 1.0 + 1e-5 * 3 * part
        assert took == pytest.approx(6 * (50.0 + part / 1000.0) + 3 * addition, rel=0.01)


def test_a_ring_of_gpus_takes_what_collectives_take() -> None:
    """On links on which bytes decide; where latencies do, it takes its transfers."""
    for latency_us, us in ((0.0, collective_us("all_reduce", 8 * LAYER, 4, 1.0, 0.0)), (1e6, 6e6 + 12 * LAYER)):
        on = planned(GRAPH, [(0, 1, 2, 3)])
        links = {"bandwidth": np.ones((4, 4)), "latency_us": np.full((4, 4), latency_us), "shared_links": ()}
        problem = PlacementProblem(GRAPH, replace(on.problem.cluster, **links), on.problem.costs)
        step = torch_pipeline(simulate(problem, on.placement, plan=on.plan)).step
        names = step.problem.graph.op_names
        begun, ended = ([op for op, name in enumerate(names) if what in name] for what in (", gradients", "summed up"))
        assert step.finish_us[ended].max() - step.start_us[begun].max() == pytest.approx(us, rel=1e-3)


def test_what_the_gradients_of_inputs_need_is_kept_until_those_of_weights_are_computed() -> None:
    """Of two ranks that torch ran, the one with chunks I and W held 327.2 MB; simulated were 247.5, now 327.2."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    step = torch_pipeline(planned(captured(nn.Sequential(*(block() for _ in range(4))), 2), [(0,), (1,)])).step
    graph = step.problem.graph
    last = {graph.op_names[source] for source in graph.reads[graph.index["3.2/grad/sum"]]}  # the last op of W
    assert {"2.0/addmm", "3.0/addmm"} <= last, "what the gradients of GELU have read already"


def test_attention_with_dropout_is_one_kernel_for_torch_as_well() -> None:
    """Between I and W a rank keeps nothing that is inside of a kernel, which a GPU doesn't make."""

    class Words(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[:, None, :].expand(-1, 256, -1))

    layer = nn.TransformerEncoderLayer(WIDTH, 4, WIDTH, 0.1, batch_first=True)
    made = torch_pipeline(planned(captured(Words(*(deepcopy(layer) for _ in range(4)))), [(0,), (1,)]))
    chunks, step = made.order.schedule, made.step
    on_gpus = [
        PlacementProblem(of.problem.graph, of.problem.cluster).op_time.max(axis=1).sum() for of in (chunks, step)
    ]
    assert on_gpus[1] < 1.02 * on_gpus[0]


def test_what_a_chunk_takes_beside_its_ops_is_counted() -> None:
    plain, measured = (torch_pipeline(_on_cores([(0,), (1,)], beside)).step for beside in (False, True))
    graph = measured.problem.graph
    chunks = [name for name, kind in zip(graph.op_names, graph.op_types, strict=True) if kind == CHUNK]
    assert {name[:2] for name in chunks} == {"0F", "0B", "1F", "1I", "1W"}
    assert len(chunks) == 8 * 5
    split = 8 * (8 * 20.0 + 4 * LAYER * 0.001)  # each W of a stage of four layers
    np.testing.assert_allclose(measured.busy_us - plain.busy_us, [16 * 500.0, 24 * 500.0 + split, 0.0, 0.0], rtol=1e-6)


def _on_cores(devices: list[tuple[int, ...]], measured: bool) -> Schedule:
    """A plan on four devices, with costs that say what torch takes or don't."""
    on = planned(GRAPH, devices)
    kind = replace(on.problem.cluster.devices[0], kind="cpu", overhead_us=0.0)
    cores = tuple(replace(kind, name=f"cpu:{number}") for number in range(4))
    apart = 1 - np.eye(4)
    cluster = Cluster("cores", cores, np.full((4, 4), 1000.0), 50.0 * apart)
    fits = {"*": Fit(1.0, 0.0, 1e-5)}
    if measured:
        fits |= {CHUNK: Fit(500.0, 0.0, 0.0), SPLIT: Fit(20.0, 0.0, 0.001), SUM: Fit(10.0, 0.0, 0.01)}
    problem = PlacementProblem(GRAPH, cluster, Profiled("", "", (), {"cpu": fits}))
    return simulate(problem, on.placement, plan=on.plan)
