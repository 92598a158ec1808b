"""The benchmarks and the demo run, on what is small."""

import os
from pathlib import Path

import pytest

from experiments import bench, bench_simulator, demo


def test_seconds_of_a_placer_on_a_graph_of_each_family(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(bench.BenchConfig("2xv100", graphs=1, placers="etf"))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| etf | ")]
    assert [row.split(" | ")[1] for row in rows] == ["cifar10:test:0", "ptb:test:0", "nmt:test:0"]


def test_a_row_of_the_simulator() -> None:
    row = bench_simulator.bench(bench_simulator.random_graph(50), 2, "k80", 0.01)
    assert row[:3] == ("50", "2", "k80")
    assert len(row) == len(bench_simulator.HEAD)


@pytest.mark.slow
def test_the_demo_trains_places_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small_family: None
) -> None:
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})  # on one core it starts no processes
    try:
        rows = demo.main(demo.DemoConfig(tmp_path, family="small", cluster="2xv100", minutes=0.02, test_graphs=1))
    finally:
        os.sched_setaffinity(0, usable)
    assert {row["placer"] for row in rows} >= {"placeto zero-shot", "anneal@1000", *demo.CONTROLS}
    assert "the policy's one pass over graphs" in capsys.readouterr().out
    assert all((tmp_path / name).is_file() for name in ("table.md", "placement.json", "gantt.png"))
