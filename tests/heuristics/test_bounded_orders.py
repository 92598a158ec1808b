"""Orders that bound what a device holds, against what pipelines of equal stages can reach at best."""

from typing import Any

import numpy as np
import pytest

from placeto.heuristics.pipelines.bounded_orders import bounded_orders
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate
from tests.cases import problem_of
from tests.toys import linked, random_graph, toy_cluster

PASSES = {"f": "forward", "r": "recomputation", "i": "backward", "w": "backward"}


def pipeline(
    devices: int, chunks: int, micro_batches: int, *, back: bool = False, again: bool = False
) -> tuple[PlacementProblem, np.ndarray]:
    """Stages of equal work on free links, `chunks` on each device: forward, gradients of inputs and of weights alike.

    The stages go round the devices, or if `back` is set to the last device and back to the first. If `again` is set
    all but the first are in checkpoints: what the stage before has sent is read again, and gradients are one op.
    """
    stages, ops, placement = devices * chunks, [], []
    for batch in range(micro_batches):

        def add(kind: str, stage: int, time: float, *inputs: str, batch: int = batch) -> None:
            of: dict[str, Any] = {"micro_batch": batch, "pass": PASSES[kind], "time_us": {"*": time * 60.0 / chunks}}
            reads = [[f"{each}-{batch}", 0] for each in inputs]
            ops.append({"name": f"{kind}{stage}-{batch}", "inputs": reads, "outputs": [1], **of})
            placement.append(2 * devices - 1 - stage if back and stage >= devices else stage % devices)

        for stage in range(stages):
            add("f", stage, 1.0, *([f"f{stage - 1}"] if stage else []))
        for stage in reversed(range(stages)):
            gradient = f"i{stage + 1}" if stage < stages - 1 else f"f{stage}"
            if again and stage:
                add("r", stage, 1.0, f"f{stage - 1}", gradient)
                add("i", stage, 2.0, f"r{stage}", gradient)
            elif again:
                add("i", stage, 3.0, "f0", gradient)
            else:
                add("i", stage, 1.0, *dict.fromkeys((f"f{stage}", gradient)))
                add("w", stage, 1.0, f"f{stage}", f"i{stage}")
    cluster = linked(toy_cluster(devices).devices, 1e15, link="free", dispatch="priority")
    return problem_of(ops, cluster), np.array(placement)


def held(schedule: Schedule, device: int) -> int:
    """The most chunks that a device has begun and not ended at the same time."""
    names = schedule.problem.graph.op_names
    here = [op for op in range(len(names)) if schedule.placement[op] == device]
    begun = [(schedule.start_us[op], 1) for op in here if names[op][0] == "f"]
    ended = [(schedule.finish_us[op], -1) for op in here if names[op][0] == "w"]
    return int(np.cumsum([change for _, change in sorted(begun + ended)]).max())


def orders(problem: PlacementProblem, placement: np.ndarray) -> list[tuple[float, int]]:
    """Makespan in units of a stage's pass, and most chunks that any device holds, of each order."""
    found = []
    for order in bounded_orders(problem, placement):
        schedule = simulate(problem, placement, order=order)
        most = max(held(schedule, device) for device in range(problem.num_devices))
        found.append((round(schedule.makespan_us / 60.0, 3), most))
    return found


@pytest.mark.parametrize(("devices", "micro_batches"), [(4, 8), (4, 16), (8, 16)])
@pytest.mark.parametrize("back", [False, True])
def test_interleaved_pipelines_have_no_bubble_but_at_their_ends(devices: int, micro_batches: int, back: bool) -> None:
    # the least that is possible, and what torch's InterleavedZeroBubble and ZBVZeroBubble take and hold
    least, chunks = 3 * micro_batches + (devices - 1) / 2, 2 * devices
    assert (least, chunks) in orders(*pipeline(devices, 2, micro_batches, back=back))


@pytest.mark.parametrize(("devices", "micro_batches"), [(4, 8), (4, 16), (8, 16)])
def test_pipelines_hold_what_1f1b_holds_and_end_before_it(devices: int, micro_batches: int) -> None:
    found = orders(*pipeline(devices, 1, micro_batches))
    time, most = found[0]
    assert most == devices
    assert time < 3 * (micro_batches + devices - 1)  # 1F1B's
    assert min(time for time, _ in found) == 3 * micro_batches + devices - 1  # its lower bound, for more memory


@pytest.mark.parametrize("defer", [True, False])
def test_with_falling_bounds_each_device_holds_what_it_holds_in_1f1b(defer: bool) -> None:
    devices, micro_batches = 4, 8
    problem, placement = pipeline(devices, 1, micro_batches)
    (order,) = bounded_orders(problem, placement, defer, falling=True)
    schedule = simulate(problem, placement, order=order)
    assert [held(schedule, device) for device in range(devices)] == [4, 3, 2, 1]
    assert schedule.makespan_us / 60.0 <= 3 * (micro_batches + devices - 1)
    assert list(bounded_orders(*pipeline(devices, 2, micro_batches), defer, falling=True)) == []


def test_what_is_computed_again_belongs_to_the_chunk_that_it_serves() -> None:
    devices, chunks, micro_batches = 2, 2, 4
    problem, placement = pipeline(devices, chunks, micro_batches, again=True)
    *_, last = bounded_orders(problem, placement)
    # forward and recomputation take a unit, gradients two: an interleaved pipeline with a bubble of both passes
    least = 4 * micro_batches + (devices - 1) / chunks * 4
    assert simulate(problem, placement, order=last).makespan_us / 60.0 == pytest.approx(least)


def test_there_are_none_without_micro_batches() -> None:
    problem = PlacementProblem(random_graph(0), toy_cluster(2))
    assert list(bounded_orders(problem, np.zeros(problem.num_ops, np.int64))) == []


@pytest.mark.parametrize("defer", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_any_placement_has_orders_that_run(seed: int, defer: bool) -> None:
    problem, _ = pipeline(3, 2, 4)
    placement = np.random.default_rng(seed).integers(3, size=problem.num_ops)
    work = np.bincount(placement, problem.busy_us[:, 0]).max()
    for order in bounded_orders(problem, placement, defer):
        assert work <= simulate(problem, placement, order=order).makespan_us <= problem.single_device_us
