"""The grid of a step in micro-batches: its cells are the chunks that torch runs, at the times of the schedule."""

from html.parser import HTMLParser
from itertools import groupby

import numpy as np
import pytest

from placeto.formats.exports import torch_pipeline
from placeto.formats.report import report_page
from placeto.formats.report.grid import Grid, step_grid
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from placeto.simulator.tool_steps.chunk_order import order_chunks
from tests.formats.torch_toys import captured, chain, planned
from tests.toys import toy_cluster, work

GRAPH = captured(chain())
PLANS = {"straight": [(0,), (1,)], "interleaved": [(0,), (1,), (0,), (1,)], "replicas": [(0, 1), (2, 3)]}


class Lanes(HTMLParser):
    """The cells of a page's grid by row: title, style and text of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, str, str]]] = []
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag == "div":
            self._inside = found.get("class", "")
            if self._inside == "lane":
                self.rows.append([])
        elif tag == "span" and self._inside == "lane":
            self.rows[-1].append((found["title"], found["style"], ""))

    def handle_data(self, data: str) -> None:
        if self._inside == "lane" and data.strip():
            title, style, _ = self.rows[-1][-1]
            self.rows[-1][-1] = (title, style, data)


def labels(grid: Grid) -> list[list[str]]:
    """Of each row, in the order of time; a chunk that other ops interrupt once."""
    named = [[cell.label for cell in row.cells if cell.label] for row in grid.rows]
    return [[label for label, _ in groupby(row)] for row in named]


@pytest.mark.parametrize("plan", PLANS)
def test_cells_are_the_chunks_that_torch_runs(plan: str) -> None:
    schedule = planned(GRAPH, PLANS[plan])
    made = torch_pipeline(schedule)
    rows = [row for replica in range(len(made.ranks)) for row in made.rows(replica)]
    ranks = [rank for own in made.ranks for rank in own]
    assert labels(grid := step_grid(schedule)) == [rows[place] for place in np.argsort(ranks)]
    assert ("torch's replicas sum after their chunks" in grid.sentence) is (len(made.ranks) > 1)


@pytest.mark.parametrize("plan", PLANS)
def test_the_page_has_the_times_of_the_schedule(plan: str) -> None:
    schedule = planned(GRAPH, PLANS[plan], "1f1b")
    drawn = order_chunks(schedule).schedule
    lanes = Lanes(report_page(schedule, "model")).rows
    used = np.unique(drawn.placement).tolist()
    assert len(lanes) == len(used)
    for device, cells in zip(used, lanes, strict=True):
        ends = [tuple(float(part.split(":")[1].strip("% ")) for part in style.split(";")) for _, style, _ in cells]
        busy = sum(width for (title, *_), (_, width) in zip(cells, ends, strict=True) if "bubble" not in title)
        gaps = sum(width for (title, *_), (_, width) in zip(cells, ends, strict=True) if "bubble" in title)
        assert busy == pytest.approx(100 * drawn.busy_us[device] / drawn.makespan_us, abs=1.5)  # gaps of 0.1 %
        assert busy + gaps == pytest.approx(100, abs=1.5)
        first = drawn.device_order[device][drawn.finish_us[drawn.device_order[device]] > 0][0]
        assert min(left for (title, *_), (left, _) in zip(cells, ends, strict=True) if "bubble" not in title) == (
            pytest.approx(100 * drawn.start_us[first] / drawn.makespan_us, abs=0.1)
        )
        assert all(text in ("", title.split(":")[0]) for title, _, text in cells)
        assert any(text for *_, text in cells)


def test_bubbles_are_what_is_not_busy() -> None:
    schedule = planned(GRAPH, PLANS["straight"], "1f1b")
    drawn = order_chunks(schedule).schedule
    grid = step_grid(schedule)
    assert [row.bubble for row in grid.rows] == pytest.approx(1.0 - drawn.busy_us[:2] / drawn.makespan_us)
    idle = 1.0 - drawn.busy_us[:2].mean() / drawn.makespan_us
    assert f"of the time of the 2 devices that are used they are {idle:.1%}" in grid.sentence


def test_what_is_no_pipeline_is_drawn_op_by_op_and_says_why() -> None:
    ops = [
        {"name": "a", "micro_batch": 0, "pass": "forward", "outputs": [1], **work(100.0)},
        {"name": "b", "micro_batch": 1, "pass": "forward", "outputs": [1], **work(100.0)},
        {"name": "c", "micro_batch": 0, "pass": "backward", "inputs": [["a", 0]], **work(300.0)},
        {"name": "d", "micro_batch": 1, "pass": "backward", "inputs": [["b", 0]], **work(300.0)},
        {"name": "e", "pass": "optimizer", "inputs": [["c", 0]], **work(100.0)},
    ]
    for op in ops:
        op.setdefault("outputs", [1])
    problem = PlacementProblem(ComputationGraph.from_ops("net", ops), toy_cluster(3))
    grid = step_grid(simulate(problem, np.array([0, 0, 0, 1, 0])))
    assert grid.sentence.startswith("The placement is no pipeline that torch.distributed.pipelining runs: ")
    assert labels(grid) == [["F0", "F1", "B0"], ["B1"]]
    assert [cell.kind for cell in grid.rows[0].cells] == ["F", "F", "B", "other"]
    assert [cell.start for cell in grid.rows[0].cells] == pytest.approx([0, 1 / 6, 1 / 3, 5 / 6], abs=2e-3)
    assert [cell.kind for cell in grid.rows[1].cells] == ["bubble", "B", "bubble"]
    assert grid.rows[1].bubble == pytest.approx(0.5)
    assert grid.kinds == ["F", "B", "other", "bubble"]


def test_many_short_passes_make_no_more_cells_than_a_row_has_pixels() -> None:
    ops = [{"name": f"o{i}", "micro_batch": i % 2, "outputs": [1], **work(1.0)} for i in range(3000)]
    problem = PlacementProblem(ComputationGraph.from_ops("net", ops), toy_cluster(1))
    (row,) = step_grid(simulate(problem, np.zeros(3000, int))).rows
    assert len(row.cells) <= 960


def test_without_micro_batches_a_sentence_says_so() -> None:
    ops = [{"name": "a", "outputs": [1], **work(10.0)}]
    schedule = simulate(PlacementProblem(ComputationGraph.from_ops("net", ops), toy_cluster(1)), np.zeros(1, int))
    grid = step_grid(schedule)
    assert not grid.rows
    assert grid.sentence.endswith("capture it with --micro-batches 2 or more.")
    page = report_page(schedule, "net")
    assert "net isn&#39;t in micro-batches" in page
    assert Lanes(page).rows == []
