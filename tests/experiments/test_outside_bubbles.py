"""Pipelines on free links take what the textbook says, and hold as many chunks."""

import json

import numpy as np
import pytest

from experiments.outside_bubbles import DATA, Bubbles, live_chunks, main, pipeline, schedules
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.toys import alike, linked


def test_gpipe_takes_what_its_formula_says_and_holds_all_micro_batches() -> None:
    graph = pipeline(3, 1, 5, split=False)
    cluster = linked(alike(*[10**12] * 3), 1e12, link="free")
    names = graph.op_names
    order = np.array(
        [names.index(f"F{stage}.{batch}") for batch in range(5) for stage in range(3)]
        + [names.index(f"I{stage}.{batch}") for batch in range(5) for stage in (2, 1, 0)]
    )
    placement = np.array([int(name[1]) for name in names])
    schedule = simulate(PlacementProblem(graph, cluster), placement, order=order)
    assert schedule.makespan_us == pytest.approx((5 + 2) * 3000.0)
    assert live_chunks(schedule) == 5


@pytest.mark.parametrize(("chunks", "split", "least"), [(1, False, 18.0), (2, False, 15.0 + 1.5), (1, True, 16.0)])
def test_the_best_order_reaches_the_formula(chunks: int, split: bool, least: float) -> None:
    best = min(schedule.makespan_us for _, schedule in schedules(2, chunks, 5, split))
    assert best == pytest.approx(least * 1000.0)


@pytest.mark.parametrize(("devices", "chunks", "micro_batches"), [(5, 1, 10), (4, 2, 12), (3, 3, 9)])
@pytest.mark.parametrize("split", [False, True])
def test_published_schedules_are_reached_in_their_memory(
    devices: int, chunks: int, micro_batches: int, split: bool
) -> None:
    # what torch's 1F1B, Interleaved1F1B and InterleavedZeroBubble take and hold, by hand
    bubble = (devices - 1) / chunks * (1 if split else 3)
    held = chunks * devices + (0 if split or chunks == 1 else devices - 1)
    if chunks > 1 or not split:
        found = [(one.makespan_us, live_chunks(one)) for _, one in schedules(devices, chunks, micro_batches, split)]
        best = min(time for time, most in found if most <= held)
        assert best == pytest.approx((3 * micro_batches + bubble) * 1000.0)


@pytest.mark.skipif(not (DATA / "parallel").exists(), reason="torch's makespans lie beside the project")
def test_the_table_has_torchs_makespans_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads((DATA / "parallel" / "golden.json").read_text())["torch_schedules"]["rows"]
    main(Bubbles(sizes=((4, 8),)))
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(lines) == 4
    assert float(lines[0][5]) == next(row[4] for row in rows if row[:4] == ["1F1B", 1, 4, 8])
    assert all(float(line[7]) <= float(line[5]) for line in lines if line[5])
