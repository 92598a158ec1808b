"""The report's page: what a reader of its HTML and of its data finds, and what a browser makes of it."""

import base64
import json
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeto.formats.report import Ways, report_page, save_report
from placeto.formats.report.chart import TICKS
from placeto.formats.report.memory_pictures import HEIGHT, memory_pictures
from placeto.formats.report.modules import module_tree
from placeto.formats.report.tables import cut_table, device_table, link_table, path_table, step_table
from placeto.formats.report.words import summary
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.readings.critical_path import critical_path
from placeto.simulator.result import PlacementResult
from placeto.simulator.schedule import Schedule, simulate
from tests.captures import chained
from tests.toys import toy_cluster, work

CHROMIUM = Path("/usr/bin/chromium")
NASTY = "</script><b>&{{ 1 }}"


def fork(memory: int = 10**6) -> Schedule:
    """Encoder on the first device, two heads on both; 3,000 bytes go over."""
    ops = [
        {"name": "in", "module": "encoder.0.mlp", "param_bytes": 1000, "outputs": [3000], **work(1000.0)},
        {"name": "left", "module": "heads.left", "inputs": [["in", 0]], "outputs": [10], **work(5000.0)},
        {"name": NASTY, "module": "heads.right", "inputs": [["in", 0]], "outputs": [20], **work(4000.0)},
    ]
    problem = PlacementProblem(ComputationGraph.from_ops("fork", ops, "inference"), toy_cluster(3, memory=memory))
    return simulate(problem, np.array([0, 0, 1]))


class Page(HTMLParser):
    """The tags of a page, its visible text, and its data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.data = "", ""
        self._inside: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append("data" if dict(attrs).get("id") == "data" else tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        where = self._inside[-1] if self._inside else ""
        if where == "data":
            self.data += data
        elif where not in ("script", "style"):
            self.text += data


def unpacked(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


@pytest.fixture(scope="module")
def page() -> Page:
    schedule = fork()
    single = PlacementResult(schedule.placement, 10000.0, True, 1, 0.5, (), schedule.problem)
    return Page(report_page(schedule, "my <model>", "etf", {"single": single}))


def test_the_data_is_the_schedule(page: Page) -> None:
    data: dict[str, Any] = json.loads(page.data)
    schedule = fork()
    assert data["makespan_us"] == schedule.makespan_us == 8000.0
    assert data["ops"]["names"] == ["in", "left", NASTY]
    assert data["ops"]["first"] == [0, 2, 3, 3]
    scale = schedule.makespan_us / TICKS
    assert unpacked(data["ops"]["start"], "<u4") * scale == pytest.approx([0.0, 1000.0, 4000.0], abs=1e-5)
    assert unpacked(data["ops"]["end"], "<u4") * scale == pytest.approx([1000.0, 6000.0, 8000.0], abs=1e-5)
    assert [data["modules"][number] for number in unpacked(data["ops"]["module"], "<u4")][2] == "heads.right"
    assert unpacked(data["ops"]["critical"], "u1").tolist() == [1, 0, 1]
    assert unpacked(data["sends"]["bytes"], "<f8").tolist() == [3000.0]
    assert unpacked(data["sends"]["to"], "<i2").tolist() == [1]
    assert len(data["colors"]) == len(data["labels"]) == len(set(data["colors"]))


def test_it_needs_nothing_else_and_escapes_names(page: Page) -> None:
    assert not any("src" in attributes or tag == "link" for tag, attributes in page.tags)
    links = [attributes["href"] or "" for tag, attributes in page.tags if tag == "a"]
    assert links
    assert all(link.startswith("#") for link in links)
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {link[1:] for link in links} <= ids
    assert "my <model> on toy" in page.text
    assert [tag for tag, _ in page.tags].count("b") == 2  # of the captions, none of a name
    assert NASTY in page.text


def test_words_say_what_is_where_and_what_bounds_it() -> None:
    schedule = fork()
    said = dict(summary(schedule, critical_path(schedule), "fork", "etf"))
    assert "placed on 2 of the 3 devices of toy by etf" in said["Result"]
    assert "8.00 ms in the simulator, 1.25 times as fast as gpu:0 alone (10.0 ms)" in said["Result"]
    assert "1.25 devices are busy" in said["Result"]
    assert "one tensor is sent, 3.00 kB in all" in said["Result"]
    assert "gpu:0 computes 60 % of the work, most of it in heads.left (83 %)" in said["What is where"]
    assert "62 % is computing what the next op or transfer needs, 38 % is transfers. Ops" in said["What takes the time"]
    assert "More devices would not shorten the longest chain of ops, which takes 75 %" in said["What takes the time"]
    assert "gpu:0, is busy for 75 % of the step" in said["What takes the time"]
    assert said["Memory"] == "It fits. The fullest device, gpu:0, holds 4.01 kB of 1.00 MB at its peak."
    assert said["Instead of placing"].startswith("A replica on each device gives 2.40 times the samples a second")


def test_what_does_not_fit_is_said() -> None:
    schedule = fork(memory=3015)
    said = dict(summary(schedule, critical_path(schedule), "fork", ""))
    assert "It does not fit: 995 B on gpu:0, 5 B on gpu:1 too much" in said["Memory"]
    assert "No single device holds the model" in said["Result"]
    assert "doesn't fit" in said["Instead of placing"]
    assert all(picture.caption.endswith("too much") for picture in memory_pictures(schedule))


def test_tables_of_what_is_sent_and_of_the_path() -> None:
    schedule = fork()
    path = critical_path(schedule)
    assert cut_table(schedule).rows == [("3.00 kB", "gpu:0", "in (encoder.0.mlp)", "gpu:1", "heads.right")]
    assert link_table(schedule).rows == [("gpu:0", "gpu:1", "1", "3.00 kB", "37.5%")]
    assert [row[0] for row in path_table(schedule, path).rows] == ["encoder.0.mlp", "heads.right"]
    assert [row[0] for row in step_table(schedule, path).rows] == ["in", "tensor of in", NASTY]


def test_modules_that_hold_one_alone_are_joined_with_it() -> None:
    tree = module_tree(fork())
    assert [(child.name, child.ops, child.devices) for child in tree.children] == [
        ("encoder.0.mlp", 1, [("gpu:0", 1.0)]),
        ("heads", 2, [("gpu:0", 5 / 9), ("gpu:1", 4 / 9)]),
    ]
    assert [child.name for child in tree.children[1].children] == ["left", "right"]


def test_memory_over_time_against_the_limit() -> None:
    pictures = memory_pictures(fork(memory=8000))
    assert [picture.device for picture in pictures] == ["gpu:0", "gpu:1"]
    assert pictures[0].limit is not None
    assert "peak 4.01 kB of 8.00 kB (50%), at 1.00 ms" in pictures[0].caption
    assert pictures[0].memory == "8.00 kB"
    assert memory_pictures(fork())[0].limit is None


def test_many_devices_are_told_in_a_table() -> None:
    problem = PlacementProblem(chained(8, 16, 8), load_cluster("8xv100"))
    schedule = simulate(problem, np.arange(problem.num_ops) % 8)
    said = dict(summary(schedule, critical_path(schedule), "chain", ""))
    assert said["What is where"] == "The table of devices below says what each of the 8 devices computes."
    table = device_table(schedule)
    assert table.columns[3:5] == ("of the work", "most of it in")
    assert len(table.rows) == 8
    assert all("%" in row[3] and "(" in row[4] for row in table.rows)


def heights(points: str) -> list[float]:
    """Of the corners of a polygon, in pixels from below."""
    return [HEIGHT - float(corner.split(",")[1]) for corner in points.split()]


def test_memory_by_category_of_the_fullest_device() -> None:
    ops = [
        {"name": "w", "type": "parameter", "param_bytes": 300, "outputs": [300]},
        {"name": "a", "inputs": [["w", 0]], "outputs": [700], **work(10.0)},
        {"name": "b", "inputs": [["a", 0]], "outputs": [5], **work(20.0)},
    ]
    problem = PlacementProblem(ComputationGraph.from_ops("chain", ops), toy_cluster(2, memory=2000))
    picture, _ = memory_pictures(simulate(problem, np.array([0, 0, 1])))
    assert picture.device == "gpu:0"
    assert picture.caption == "peak 1.90 kB of 2.00 kB (95%), at 0 us"
    of = {"weights": "300 B", "gradients": "300 B", "optimizer": "600 B", "activations": "700 B"}
    assert picture.peak == of
    pixel = HEIGHT / (1.08 * 2000)
    tops = [max(heights(points)) / pixel for points in picture.areas.values()]
    assert tops == pytest.approx([1900, 1200, 600, 300], abs=1)
    assert picture.limit == pytest.approx(HEIGHT - 2000 * pixel, abs=0.1)
    assert [text for _, text in picture.lines] == ["0 B", "1.00 kB", "2.00 kB"]
    small = PlacementProblem(problem.graph, toy_cluster(2, memory=1000))
    over, _ = memory_pictures(simulate(small, np.array([0, 0, 1])))
    assert over.limit is not None
    assert over.caption.endswith("900 B too much")


def test_the_page_of_a_plan_has_its_table_and_its_sentence() -> None:
    rows = [["pipeline", "w 1.20 GB a 3 kB", "8"], ["one <device>", "gpu:0", "1"]]
    ways = Ways(["way", "fullest device", "M"], rows, "Use it.", "Note.")
    page = Page(report_page(fork(), "fork", ways=ways))
    assert "Use it." in page.text
    assert "Note." in page.text
    assert "pipeline (this report)" in page.text
    assert "w\N{NO-BREAK SPACE}1.20\N{NO-BREAK SPACE}GB a\N{NO-BREAK SPACE}3\N{NO-BREAK SPACE}kB" in page.text
    assert "one <device>" in page.text
    assert "Instead of placing" not in page.text  # as the table has replicas
    assert [attributes for tag, attributes in page.tags if tag == "th"][:3] == [
        {"scope": "col"},
        {"scope": "col"},
        {"scope": "col", "class": "number"},
    ]


def test_graphs_without_modules_times_or_transfers_have_a_page(tmp_path: Path) -> None:
    ops = [{"name": name, "time_us": {"*": 0.0}} for name in "ab"]
    problem = PlacementProblem(ComputationGraph.from_ops("nothing", ops), toy_cluster(1))
    save_report(simulate(problem, np.zeros(2, int)), tmp_path / "page.html", "nothing")
    assert "nothing to replicate" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Chromium")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(report_page(fork(), "fork"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [str(CHROMIUM), *options, "--dump-dom", path.as_uri()]
    drawn = Page(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert dict(drawn.tags)["html"].get("data-drawn") == "yes"
    assert "heads.right" in drawn.text
    (canvas,) = [attributes for tag, attributes in drawn.tags if tag == "canvas"]
    assert int(canvas["height"] or 0) > 80
