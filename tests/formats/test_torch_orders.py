"""Orders of chunks are those of the ops, torch reads them, and their schedule is whole chunks."""

import csv
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining.schedules import (
    PipelineStage,
    _ComputationType,
    _PipelineScheduleRuntime,
    _simulate_comms_compute,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

from placeto.formats.exports import torch_pipeline
from placeto.problem.graph.label_values import BACKWARD_PASSES
from placeto.problem.step.forward_pass import before_loss
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import Schedule, simulate
from placeto.simulator.tool_steps.chunk_order import ChunkOrder, order_chunks
from placeto.simulator.tool_steps.pipeline_step import in_whole_chunks, pipeline_step
from tests.formats.torch_toys import WIDTH, captured, chain, planned

GRAPH = captured(chain())
PLANS = {
    "straight": [(0,), (1,)],
    "interleaved": [(0,), (1,), (0,), (1,)],
    "V": [(0,), (1,), (1,), (0,)],
    "back": [(0,), (1,), (0,)],
    "replicas": [(0, 1), (2, 3)],
    "data parallel": [(0, 1)],
    "long": [(0,), (1,), (2,), (3,)],
}
NOT_COMPUTED = (_ComputationType.UNSHARD, _ComputationType.RESHARD, _ComputationType.REDUCE_GRAD)


def cells(schedule: Schedule, replica: int = 0) -> list[list[str]]:
    return torch_pipeline(schedule).rows(replica)


def test_one_forward_one_backward() -> None:
    first, last = cells(planned(GRAPH, PLANS["straight"], "1f1b"))
    assert " ".join(last) == "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2 1F3 1I3 1W3"
    assert [cell for cell in first if "B" in cell] == ["0B0", "0B1", "0B2", "0B3"]
    assert sorted(first) == sorted([f"0{kind}{number}" for kind in "FB" for number in range(4)])


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch's process groups, of which all other ranks are pretended."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("order", ["bounded", "priority", "1f1b"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.usefixtures("runtime")
def test_torch_reads_what_is_exported(plan: str, order: str, tmp_path: Path) -> None:
    schedule = planned(GRAPH, PLANS[plan], order)
    made = torch_pipeline(schedule)
    for replica, devices in enumerate(made.order.plan.replicas):
        rows = made.rows(replica)
        path = tmp_path / "schedule.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        last = f"{len(devices) - 1}F"
        forward = [cell for row in rows for cell in row if cell.startswith(last)]
        assert forward == [f"{last}{number}" for number in range(len(forward))]  # losses are found by this number
        read = _read(path, len(rows), len(devices), len(made.micro_batches(replica)))
        rank = [made.ranks[replica].index(device) for device in devices]
        assert [read.stage_index_to_group_rank[stage] for stage in range(len(rank))] == rank
        assert [[str(action) for action in read.pipeline_order[row]] for row in range(len(rows))] == rows
        computed = {
            row: [action for action in actions if action.computation_type not in NOT_COMPUTED]
            for row, actions in read.pipeline_order_with_comms.items()
        }
        _simulate_comms_compute(computed, rank.__getitem__, len(rank))  # raises where ranks wait for ever


def test_micro_batches_are_numbered_as_the_last_stage_runs_them() -> None:
    schedule = planned(GRAPH, PLANS["straight"])
    started = schedule.order[schedule.order < GRAPH.num_ops]
    forward = np.flatnonzero(before_loss(GRAPH))
    forward = forward[np.argsort(-GRAPH.micro_batches[forward], kind="stable")]  # the last micro-batch first
    shared = [op for op in started if GRAPH.op_types[op] == "parameter"]
    order = np.array([*shared, *forward, *started[~np.isin(started, [*shared, *forward])]])
    turned = simulate(schedule.problem, schedule.placement, order=order, plan=schedule.plan)
    made = torch_pipeline(turned)
    assert made.micro_batches(0) == (3, 2, 1, 0)
    assert [cell for cell in made.rows(0)[1] if "F" in cell] == ["1F0", "1F1", "1F2", "1F3"]


@pytest.mark.usefixtures("runtime")
def test_each_stage_has_a_backward_pass(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    model[0].requires_grad_(False)
    schedule = planned(captured(model), [(0,), (1,), (2,), (3,)])
    assert torch_pipeline(schedule).modules == (("0",), ("1",), ("2",), ("3",))
    rows = cells(schedule)
    kinds = [{cell[1] for cell in row} for row in rows]
    assert kinds == [{"F", "B"}, {"F", "B"}, {"F", "B"}, {"F", "I", "W"}]  # 0 trains nothing, 2 has no weights
    path = tmp_path / "schedule.csv"
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    read = _read(path, 4, 4, 4)  # raises where a stage has no backward pass, or not as many W as I
    assert [[str(action) for action in read.pipeline_order[rank]] for rank in range(4)] == rows


def _read(path: Path, ranks: int, stages: int, micro_batches: int) -> _PipelineScheduleRuntime:
    group = dist.new_group(list(range(ranks)))
    stage = PipelineStage(nn.Linear(1, 1), 0, stages, torch.device("cpu"), group=group)
    read = _PipelineScheduleRuntime([stage], micro_batches, loss_fn=lambda output, _: output.sum())
    read._load_csv(str(path))
    return read


def chunk_of(op: int, made: ChunkOrder) -> tuple[int, int, bool]:
    return int(made.stage[op]), int(GRAPH.micro_batches[op]), GRAPH.passes[op] in BACKWARD_PASSES


@pytest.mark.parametrize("plan", PLANS)
def test_devices_run_chunks_one_after_the_other(plan: str) -> None:
    schedule = planned(GRAPH, PLANS[plan], "priority")  # an op of all micro-batches, then the next
    made = order_chunks(schedule)
    for device, chunks in enumerate(made.plan.chunks):
        wanted = [(stage, of, kind != "F") for stage, kind, of in chunks]
        ops = [op for op in made.schedule.device_order[device].tolist() if made.stage[op] >= 0]
        ran = [chunk_of(op, made) for op in ops]
        assert list(dict.fromkeys(ran)) == list(dict.fromkeys(wanted))
        forward = [chunk for chunk, _ in groupby(chunk for chunk in ran if not chunk[2])]
        assert len(forward) == len(set(forward))


def test_gradients_of_weights_come_behind_what_is_sent() -> None:
    made = order_chunks(planned(GRAPH, PLANS["straight"]))
    order = made.schedule.device_order[1].tolist()
    for micro_batch in range(4):
        chunk = [op for op in order if chunk_of(op, made) == (1, micro_batch, True)]
        sent = [(made.stage[GRAPH.edge_dst[GRAPH.edge_src == op]] == 0).any() for op in chunk]
        weights = [GRAPH.op_types[op] == "aten.mm" for op in chunk]
        assert sum(sent) == 1
        assert sum(weights) == 4  # two layers, each for its input and for its weight
        assert weights[: sent.index(True) + 1].count(True) == 2


def test_whole_chunks_take_the_work_of_the_ops() -> None:
    schedule = planned(GRAPH, PLANS["long"])
    made = order_chunks(schedule)
    assert made.schedule.placement.tolist() == schedule.placement.tolist()
    np.testing.assert_allclose(made.schedule.busy_us, schedule.busy_us)
    assert 0.9 < made.schedule.makespan_us / schedule.makespan_us < 1.2


@pytest.mark.parametrize("name", ["straight", "interleaved", "replicas"])
def test_a_placement_in_whole_chunks_takes_what_its_export_says(name: str) -> None:
    schedule = planned(GRAPH, PLANS[name])
    evaluator = Evaluator(schedule.problem)
    evaluator.score_plan(schedule.plan, schedule.plan.placement(schedule.problem))
    found, run = in_whole_chunks(evaluator.result())
    made = order_chunks(found.schedule())
    assert run.makespan_us == pipeline_step(made).makespan_us
    assert made.schedule.makespan_us == found.makespan_us
    own = order_chunks(schedule).schedule.makespan_us
    static = [order_chunks(simulate(schedule.problem.under("earlier-0.02"), schedule.plan))]
    assert found.makespan_us <= 1.000001 * min(own, *(order.schedule.makespan_us for order in static))
    for device, ops in enumerate(found.schedule().device_order):  # a chunk is never interrupted
        chunks = [(int(made.stage[op]), int(GRAPH.micro_batches[op])) for op in ops if made.stage[op] >= 0]
        passes = [GRAPH.passes[op] in BACKWARD_PASSES for op in ops if made.stage[op] >= 0]
        runs = [key for key, _ in groupby(zip(chunks, passes, strict=True))]
        assert len([run for run in runs if not run[1]]) == len({run for run in runs if not run[1]}), device
    assert found.plan is not None
    assert found.plan == made.plan
    shuffled = simulate(schedule.problem.under("fifo"), found.plan)  # the plan's chunks count, not the order of ops
    assert order_chunks(shuffled).plan == found.plan
