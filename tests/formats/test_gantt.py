from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from placeto.errors import PlacementError
from placeto.formats.gantt import SUFFIXES, gantt_figure, gantt_panels, save_figure
from placeto.heuristics.pipelines.plans import make_plan
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate
from tests.captures import chained
from tests.problem.test_files import limited
from tests.toys import alike, linked


def schedule_of(modules: int | list[str] = 3, time_us: float = 500.0, devices: int = 4) -> Schedule:
    """A chain of ops of these modules, on each device in turn."""
    if isinstance(modules, int):
        modules = [f"net.layer{i}.linear" for i in range(modules)] or [""] * 3
    ops = [
        {"name": f"op{i}", "type": "mm", "module": module, "outputs": [10**6], "time_us": {"*": time_us}}
        | ({"inputs": [[f"op{i - 1}", 0]]} if i else {})
        for i, module in enumerate(modules)
    ]
    problem = PlacementProblem(ComputationGraph.from_ops("chain", ops), load_cluster("4xv100"))
    return simulate(problem, np.arange(len(ops)) % devices)


def test_a_box_for_each_op_and_send() -> None:
    schedule = schedule_of()
    axes = gantt_figure(schedule).axes[0]
    ops, sends = [child for child in axes.collections if isinstance(child, PolyCollection)]
    boxes = np.array([path.get_extents().bounds for path in ops.get_paths()])  # x, y, width, height
    assert np.allclose(boxes[:, 0], schedule.start_us)
    assert np.allclose(boxes[:, 2], schedule.finish_us - schedule.start_us)
    assert np.array_equal(np.round(boxes[:, 1]), schedule.placement)
    assert len(sends.get_paths()) == schedule.num_sends == 2
    assert axes.get_xlabel() == "time (µs); 1 of 4 devices are idle"
    assert "chain on 4xv100" in axes.get_title(loc="left")
    assert [tick.get_text().split("\n")[0] for tick in axes.get_yticklabels()] == [f"gpu:{i}" for i in range(3)]


@pytest.mark.parametrize("name", ["$\\frac{$", r"\$x$", "\x1b[31m", "_orig_mod", "日本"])
def test_names_are_drawn_as_they_are_written(tmp_path: Path, name: str) -> None:
    """A formula would be an error, and a name that begins with _ would have no entry in the legend."""
    ops = [{"name": str(i), "module": f"{name}.{i}", "time_us": {"*": 500.0}} for i in range(3)]
    cluster = load_cluster("2xv100")
    cluster = replace(cluster, name=name, devices=(replace(cluster.devices[0], name=name), cluster.devices[1]))
    schedule = simulate(PlacementProblem(ComputationGraph.from_ops(name, ops), cluster), np.array([0, 1, 0]))
    figure = gantt_panels({name: schedule}, name)
    save_figure(figure, tmp_path / "g.svg")
    assert len(figure.legends[0].get_texts()) == 3 + 1


def test_long_names_leave_room_for_the_picture(tmp_path: Path) -> None:
    long = "n" * 3000
    ops = [{"name": str(i), "module": f"{i}{long}{i}", "time_us": {"*": 500.0}} for i in range(3)]
    cluster = load_cluster("2xv100")
    devices = (replace(cluster.devices[0], name=long), cluster.devices[1])
    problem = PlacementProblem(ComputationGraph.from_ops(long, ops), replace(cluster, name=long, devices=devices))
    figure = gantt_figure(simulate(problem, np.array([0, 1, 0])))
    save_figure(figure, tmp_path / "g.png")  # a warning would say that there is no room
    left, right = figure.legends[0].get_texts()[0].get_text().split("...")
    assert (left[:2], right[-2:], len(left + right)) == ("0n", "n0", 57)


@pytest.mark.parametrize(("modules", "labels"), [(3, 3), (30, 30), (31, 30), (0, 1)])
def test_equal_blocks_are_told_apart(modules: int, labels: int) -> None:
    """By colour and name; above thirty, neighbours share one."""
    figure = gantt_figure(schedule_of(modules))
    ops = figure.axes[0].collections[0]
    assert len({tuple(color) for color in ops.get_facecolor()}) == labels
    legend = [text.get_text() for text in gantt_figure(schedule_of(modules)).legends[0].get_texts()]
    assert len(legend) == labels + 1
    assert legend[-1] == "sends"
    assert legend[0] == {3: "net.layer0", 30: "net.layer0", 31: "net.layer0 - layer1", 0: "mm"}[modules]


@pytest.mark.parametrize(
    ("modules", "captions"),
    [
        ([f"net.layer{i}.linear" for i in range(4)], [f"net.layer{i}" for i in range(4)]),
        ([f"net.layer{i}.linear" for i in range(12)], [f"layer{i}" for i in (0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11)]),
        ([f"encoder.{i}" for i in range(20)], []),  # too narrow; "0" could be another's
        # there is room for "one.0" and "two.0": the first would be the caption of two blocks, so they have none
        ([f"{name}.{i}" for name in ("encoder.one", "decoder.one", "decoder.two") for i in range(4)], ["two"]),
    ],
)
def test_blocks_have_captions_where_there_is_room_and_they_are_told_apart(
    modules: list[str], captions: list[str]
) -> None:
    devices = 4 if modules[0].startswith("net") else 1
    texts = [text.get_text() for text in gantt_figure(schedule_of(modules, devices=devices)).axes[0].texts]
    assert texts == ([f"two.{i}" for i in range(4)] if captions == ["two"] else captions)


def test_only_devices_in_use_have_a_row() -> None:
    """And all rows together have a limited height."""
    problem = schedule_of(64).problem
    problem = PlacementProblem(problem.graph, linked(alike(*[10**9] * 64)))
    few = gantt_figure(simulate(problem, np.arange(64) % 2 * 40))
    assert [tick.get_text().split("\n")[0] for tick in few.axes[0].get_yticklabels()] == ["gpu:0", "gpu:40"]
    assert few.axes[0].get_xlabel().endswith("; 62 of 64 devices are idle")
    ops, sends = few.axes[0].collections
    assert {round(path.get_extents().y0) for path in (*ops.get_paths(), *sends.get_paths())} == {0, 1}
    every = gantt_figure(simulate(problem, np.arange(64)))
    assert len(every.axes[0].get_yticklabels()) == 64
    assert "idle" not in every.axes[0].get_xlabel()
    assert every.get_size_inches()[1] < 14.0


def test_panels_share_the_time_axis_and_the_colours() -> None:
    slow = schedule_of()
    fast = simulate(slow.problem, np.zeros(3, np.int64))
    figure = gantt_panels({"apart": slow, "together": fast}, "two schedules")
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()
    assert above.get_xlim()[1] >= max(slow.makespan_us, fast.makespan_us)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["apart", "together"]
    assert (above.get_xlabel(), below.get_xlabel()) == ("1 of 4 devices are idle", "time (µs); 3 of 4 devices are idle")
    np.testing.assert_array_equal(above.collections[0].get_facecolor(), below.collections[0].get_facecolor())


@pytest.mark.parametrize(("suffix", "magic"), [*zip(SUFFIXES, (b"\x89PNG", b"<?xml", b"%PDF"), strict=True)])
def test_files_are_whole_or_not_there(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path, figure = tmp_path / f"gantt{suffix}", gantt_figure(schedule_of())
    with limited(2000), pytest.raises(OSError, match="File too large") as error:
        save_figure(figure, path)
    assert error.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []
    save_figure(figure, path)
    assert path.read_bytes().startswith(magic)
    with pytest.raises(PlacementError, match=r"gantt\.bmp: a picture's name must end in \.png, \.svg, \.pdf"):
        save_figure(figure, tmp_path / "gantt.bmp")


def test_ops_of_a_plan_are_coloured_by_stage() -> None:
    problem = PlacementProblem(chained(8, 16, 8, 2), load_cluster("2xv100"))
    legend = gantt_figure(simulate(problem, make_plan(problem, ((0,), (1,))))).legends[0].get_texts()
    assert [text.get_text() for text in legend] == ["stage 0", "stage 1", "sends"]
    legend = gantt_figure(simulate(problem, make_plan(problem, ((0, 1),)))).legends[0].get_texts()
    assert legend[0].get_text() == "0"
