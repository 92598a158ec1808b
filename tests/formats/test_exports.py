"""What placements say to other tools, and that these tools take it."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import placeto
from placeto import load_cluster, simulate
from placeto.capture.trace import capture_inference, capture_training
from placeto.errors import PlanError
from placeto.formats.exports import device_map, modules_dot, save_graphml
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.whole_modules import module_units
from placeto.simulator.schedule import Schedule
from tests.captures import Made
from tests.command_line import fails, run
from tests.formats.torch_toys import on_modules
from tests.growth import assert_in_proportion
from tests.parts import through
from tests.problem.test_files import limited
from tests.toys import random_graph


class Block(nn.Sequential):
    """What it adds to its argument."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Model(nn.Module):
    """An embedding, four blocks, and a head, which may have the embedding's weight."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Block(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)) for _ in range(4))
        self.head = nn.Linear(16, 32, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(through(self.blocks, self.embedding(words)))


WORDS = torch.arange(24).reshape(4, 6)


def made(schedule_of: dict[str, int], tied: bool = False) -> Schedule:
    """The schedule where the ops of modules that begin so are on these devices, and others on the first."""
    graph = capture_training(Model(tied), [WORDS], lambda y: y.square().mean())
    return on_modules(graph, schedule_of, "4xv100")


def test_units_are_blocks_and_what_stands_beside_them() -> None:
    graph = capture_training(Model(), [WORDS], lambda y: y.square().mean())
    assert module_units(graph).names == ("embedding", *(f"blocks.{i}" for i in range(4)), "head", "")
    assert module_units(graph, ("blocks",)).names == ("embedding", "blocks", "head", "")
    own = Made(lambda self, x: x @ self.weight, weight=nn.Parameter(torch.ones(4, 4)))
    for other, whole, says in (
        (graph, ("tail",), "has no module 'tail'; there are"),
        (random_graph(0, 10), (), "has no modules: only graphs that were captured"),
        (capture_training(own, [torch.ones(2, 4)], torch.sum), (), "has no modules inside: all its parameters and ops"),
    ):
        with pytest.raises(PlanError, match=says):
            module_units(other, whole)


def test_a_module_goes_where_most_of_its_time_is_and_what_agrees_is_said_once() -> None:
    schedule = made({"blocks.2": 1, "blocks.3": 1, "head": 1})
    found = device_map(schedule)
    assert found.modules == {
        "embedding": 0, "blocks.0": 0, "blocks.1": 0, "blocks.2": 1, "blocks.3": 1, "head": 1,
    }  # fmt: skip
    assert found.step.whole.makespan_us == simulate(schedule.problem, found.step.placement).makespan_us
    assert found.step.in_order.problem.dispatch == "list"
    assert (found.step.in_order.placement == found.step.whole.placement).all()
    assert device_map(made({"blocks": 2, "head": 1})).modules == {"embedding": 0, "blocks": 2, "head": 1}
    assert device_map(made({"": 3})).modules == {"embedding": 3, "blocks": 3, "head": 3}
    assert device_map(made({"blocks.1.0": 1, "blocks.1.2": 1})).modules["blocks.1"] == 1
    tied = device_map(made({"blocks": 1, "head": 2}, tied=True)).modules
    assert tied["embedding"] == tied["head"]


def test_the_picture_has_boxes_that_can_be_counted(tmp_path: Path) -> None:
    schedule = made({"blocks.2": 1, "blocks.3": 1})
    text = modules_dot(schedule)
    boxes = dict(re.findall(r'^  b(\d+) \[label="([^"\\]*)', text, re.MULTILINE))
    assert {"embedding", "loss", "blocks.0.0"} <= set(boxes.values())
    assert len(boxes) <= 60
    few = modules_dot(schedule, 5)
    assert len(re.findall(r"^  b\d+ \[", few, re.MULTILINE)) <= 5
    ends = {end for pair in re.findall(r"b(\d+) -> b(\d+)", text) for end in pair}
    assert ends <= set(boxes)
    assert all(float(width) <= 3.5 for width in re.findall(r"penwidth=([\d.]+)", text))
    if shutil.which("dot"):
        (tmp_path / "g.dot").write_text(text)
        subprocess.run(["dot", "-Tsvg", str(tmp_path / "g.dot"), "-o", str(tmp_path / "g.svg")], check=True)
        assert (tmp_path / "g.svg").read_text().count('class="node"') == len(boxes)


def test_ops_of_a_graphml_file_are_those_of_the_schedule(tmp_path: Path) -> None:
    schedule = made({"blocks.2": 1})
    save_graphml(schedule, tmp_path / "g.graphml")
    read = nx.read_graphml(tmp_path / "g.graphml", force_multigraph=True)
    graph = schedule.problem.graph
    assert len(read) == graph.num_ops
    assert read.number_of_edges() == graph.num_edges
    for op, name in enumerate(graph.op_names):
        assert read.nodes[name]["device"] == schedule.problem.cluster.device_names[schedule.placement[op]]
        assert read.nodes[name]["end_us"] == schedule.finish_us[op]


def test_graphml_has_no_control_characters(tmp_path: Path) -> None:
    names = ["a\x1b", "a\\x1b", "\x00\ufffe", "tab\t\u202eline\n", "<&>\"'", "a\x1b\x07"]
    ops = [{"name": name, "type": name, "module": name, "outputs": [4], "inputs": []} for name in names]
    ops[1]["inputs"] = [[names[0], 0]]
    cluster = load_cluster("2xv100")
    devices = (cluster.devices[0], replace(cluster.devices[1], name="gpu\x01"))
    graph = ComputationGraph.from_ops("g\x02", ops)
    schedule = simulate(PlacementProblem(graph, replace(cluster, devices=devices)), np.arange(6) % 2)
    save_graphml(schedule, tmp_path / "g.graphml")
    read = nx.read_graphml(tmp_path / "g.graphml")
    assert list(read) == ["a\\x1b_1", "a\\x1b", "\\x00\\ufffe", "tab\\t\\u202eline\n", "<&>\"'", "a\\x1b\\x07"]
    assert list(read.edges()) == [("a\\x1b_1", "a\\x1b")]
    assert {read.nodes[name]["device"] for name in read} == {"gpu:0", "gpu\\x01"}


def test_device_maps_take_time_in_proportion_to_the_modules() -> None:
    """4,000 modules took 5 s, now 0.3 s."""

    def export(count: int) -> Callable[[], object]:
        ops: list[dict] = [{"name": "m0", "module": "m0", "time_us": {"*": 1.0}, "outputs": [8]}]
        for i in range(1, count):
            inputs = [[f"m{i - 1}", 0]]
            ops.append({"name": f"m{i}", "module": f"m{i}", "time_us": {"*": 1.0}, "outputs": [8], "inputs": inputs})
        problem = PlacementProblem(ComputationGraph.from_ops("chain", ops, "inference"), load_cluster("2xv100"))
        schedule = simulate(problem, np.arange(count) // (count // 2))
        return lambda: device_map(schedule)

    assert_in_proportion(export, 4000)


@pytest.fixture
def export(tmp_path: Path) -> list[object]:
    """The beginning of a command."""
    graph = capture_inference(Model(), [WORDS], name="model")
    placeto.save_graph(graph, tmp_path / "model.json")
    placeto.save_placement(placeto.place(graph, cluster="2xv100", placer="etf"), tmp_path / "p.json")
    return ["export", tmp_path / "model.json", "--cluster", "2xv100", "--placement", tmp_path / "p.json", "--format"]


def test_the_command_writes_each_format_whole_or_not_at_all(
    export: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*export, "dot", "-o", tmp_path / "page.dot") == 0  # which compiles what isn't compiled yet
    capsys.readouterr()
    for name in ("device-map", "dot", "graphml"):
        (tmp_path / name).write_text("old")
        with limited(10):
            assert f"{tmp_path / name}: File too large" in fails(capsys, *export, name, "-o", tmp_path / name)
        assert (tmp_path / name).read_text() == "old"
        assert run(*export, name, "-o", tmp_path / name) == 0
        assert (tmp_path / name).stat().st_size > 10
        printed = capsys.readouterr().out
        assert (
            re.search(r"^in program order +\S+ \w+, \S+ times the placement's$", printed, re.M) or name != "device-map"
        )
    assert run(*export, "device-map", "--names", "cpu,disk", "-o", tmp_path / "named") == 0
    assert set(json.loads((tmp_path / "named").read_text()).values()) <= {"cpu", "disk"}
