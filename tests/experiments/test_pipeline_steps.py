"""Steps of pipelines in closed form."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.pipeline_steps import PipelineStep, interleaved, simulated
from placeto.problem.cluster import Cluster
from tests.toys import alike, linked

FORWARD, BACKWARD, UPDATE = 10.0, 20.0, 3.0


def cluster(devices: int, bandwidth: float = 1e6) -> Cluster:
    """Alike devices; bandwidth in bytes/us."""
    return linked(alike(*[10**12] * devices), bandwidth)


def step(stages: int, replicas: int, micro_batches: int, boundary_bytes: int = 0) -> PipelineStep:
    """One layer a stage."""
    count = stages * replicas
    return PipelineStep(
        stages=[[stage] for stage in range(stages)],
        devices=np.arange(count).reshape(stages, replicas).tolist(),
        micro_batches=micro_batches,
        time_us=np.tile([FORWARD, BACKWARD, UPDATE], (stages, count, 1)),
        boundary_bytes=boundary_bytes,
        parameter_bytes=np.full(stages, 4_000_000),
        saved_bytes=np.full((stages, count), 1000),
        resident_bytes=np.full(count, 50_000),
        receive_us=np.zeros(count),
    )


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 5), (2, 1), (2, 6), (4, 3), (4, 9)])
def test_alike_stages_fill_and_drain(stages: int, micro_batches: int) -> None:
    schedule = simulated(step(stages, 1, micro_batches), cluster(stages))
    assert schedule.makespan_us == pytest.approx((micro_batches + stages - 1) * (FORWARD + BACKWARD) + UPDATE)


@pytest.mark.parametrize("waits", [False, True])
def test_a_sender_that_waits_stands_still_while_its_bytes_leave(waits: bool) -> None:
    each, spans = 4.0, []  # us of a transfer
    for count in (20, 21):
        made = replace(step(2, 1, count, 4_000_000), waits=waits)
        made.time_us[1] /= 10  # the first stage has the most to do
        spans.append(simulated(made, cluster(2)).makespan_us)
    assert spans[1] - spans[0] == pytest.approx(FORWARD + BACKWARD + waits * each)


def test_an_activation_is_sent_behind_the_receive_of_a_gradient() -> None:
    """Of two stages with two micro-batches, the first sends its second activation once it has the first gradient."""
    spans = [simulated(replace(step(2, 1, 2, 4_000_000), waits=waits), cluster(2)).makespan_us for waits in (0, 1)]
    passes = 2 * FORWARD + BACKWARD  # until the first gradient is there, with two transfers
    assert spans[1] == pytest.approx(passes + 2 * 4.0 + 4.0 + (FORWARD + BACKWARD) + 4.0 + BACKWARD + UPDATE)
    assert spans[0] < spans[1]


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_sums_go_round_a_ring(replicas: int) -> None:
    span = simulated(step(1, replicas, 2), cluster(replicas, 1e3)).makespan_us
    ring = 2 * (replicas - 1) / replicas * 4_000_000 / 1e3
    assert span == pytest.approx(2 * (FORWARD + BACKWARD) + ring + UPDATE)


def test_an_all_reduce_of_given_time_waits_for_the_last_device() -> None:
    made = replace(step(1, 2, 2), sum_us=lambda size, ranks: size / 1e6 + ranks)
    made.time_us[0, 1] *= 2  # the second replica is slower
    assert simulated(made, cluster(2)).makespan_us == pytest.approx(4 * (FORWARD + BACKWARD) + 4.0 + 2 + 2 * UPDATE)


def test_a_stage_holds_as_many_micro_batches_as_stages_follow() -> None:
    peak = simulated(step(4, 1, 8), cluster(4)).peak_memory
    assert (peak - 50_000).tolist() == [4000, 3000, 2000, 1000]


@pytest.mark.parametrize(("devices", "chunks", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 3, 4), (2, 1, 4)])
def test_interleaving_divides_the_bubble_by_the_stages_of_a_device(
    devices: int, chunks: int, micro_batches: int
) -> None:
    made = step(devices * chunks, 1, micro_batches)
    turns = interleaved(devices, chunks, micro_batches)
    times = made.time_us[:, :devices]
    around = replace(
        made,
        devices=[[stage % devices] for stage in range(devices * chunks)],
        time_us=times,
        saved_bytes=made.saved_bytes[:, :devices],
        resident_bytes=made.resident_bytes[:devices],
        receive_us=made.receive_us[:devices],
        turns=turns,
    )
    passes = (micro_batches * chunks + devices - 1) * (FORWARD + BACKWARD)
    assert simulated(around, cluster(devices)).makespan_us == pytest.approx(passes + chunks * UPDATE)
