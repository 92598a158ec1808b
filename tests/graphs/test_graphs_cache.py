"""Graphs captured on demand: the cache on disk, and the progress bar."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from graphs import MODELS, cache, capture_progress, gnmt, rnnlm, store
from graphs.capture_progress import capture_with_progress
from graphs.family import Family
from graphs.models import ModelFamily
from graphs.training_step import TrainingStep
from placeto.errors import PlacerError
from placeto.placers import families, load_family, load_split, resolve_graph
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem


def a_graph(name: str = "some") -> ComputationGraph:
    return ComputationGraph.from_ops(name, [{"name": "a", "outputs": [4]}, {"name": "b", "inputs": [["a", 0]]}])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACETO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Counted:
    """A capture that counts how often it is called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> ComputationGraph:
        self.calls += 1
        return a_graph()


def test_a_graph_is_captured_once(folder: Path) -> None:
    capture = Counted()
    path = cache.location("graphs.rnnlm", "one")
    first, second = cache.cached(path, capture), cache.cached(path, capture)
    assert capture.calls == 1
    assert first.hash == second.hash == a_graph().hash
    assert (second.name, second.mode) == ("some", "training")
    assert [file.name for file in folder.iterdir()] == [path.name], "nothing is left lying about"


def test_what_is_captured_is_what_is_read_later() -> None:
    path = cache.location("graphs.rnnlm", "one")
    signed = replace(a_graph(), signatures=("mm(f32[4])", ""))
    first, second = cache.cached(path, lambda: signed), cache.cached(path, a_graph)
    assert first.signatures == second.signatures
    assert PlacementProblem(first, load_cluster("2xv100")).hash == PlacementProblem(second, load_cluster("2xv100")).hash


@pytest.mark.parametrize("damage", ["empty", "truncated", "changed", "other"])
def test_a_damaged_file_is_replaced(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    capture = Counted()
    path = cache.location("graphs.rnnlm", "one")
    cache.cached(path, capture)
    good = path.read_bytes()
    changed = bytearray(good)
    changed[len(good) // 3] ^= 0xFF
    path.write_bytes({"empty": b"", "truncated": good[: len(good) // 2], "changed": changed, "other": b"{}"}[damage])
    assert cache.cached(path, capture).hash == a_graph().hash
    assert capture.calls == 2
    says = capsys.readouterr().err
    assert says.startswith(f"{path}: damaged, or not a file of graphs (")
    assert says.endswith("; the graph is captured again\n")
    assert path.read_bytes() == good
    cache.cached(path, capture)
    assert capture.calls == 2


def test_every_flipped_bit_is_seen_or_harmless(folder: Path) -> None:
    """The cache captures the graph again, the families' store names the file."""
    path = folder / "some.zip"
    cache.cached(path, a_graph)
    good = path.read_bytes()
    random, messages = np.random.default_rng(0), list[str]()
    for bit in random.integers(8 * len(good), size=120).tolist():
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        store._archive.cache_clear()
        try:
            assert store.load(path, "some").hash == a_graph().hash
        except store.StoreError as error:
            messages.append(str(error))
        assert cache.cached(path, a_graph).hash == a_graph().hash
    assert len(messages) > 60
    assert all(message.startswith(f"{path}: damaged, or not a file of graphs (") for message in messages)
    store._archive.cache_clear()


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLACETO_CACHE", str(tmp_path / "file" / "folder"))
    path = cache.location("graphs.rnnlm", "one")
    assert cache.cached(path, a_graph).hash == a_graph().hash
    assert f"{path}: can't be written (Not a directory); the graph isn't kept" in capsys.readouterr().err


def test_an_interrupted_capture_leaves_nothing(folder: Path) -> None:
    def interrupted() -> ComputationGraph:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.cached(cache.location("graphs.rnnlm", "one"), interrupted)
    assert not folder.exists()


def test_location_depends_on_content_and_code() -> None:
    assert cache.location("graphs.rnnlm", "a") == cache.location("graphs.rnnlm", "a")
    assert cache.location("graphs.rnnlm", "a") != cache.location("graphs.rnnlm", "b")
    assert cache.location("graphs.gnmt", "a").name != cache.location("graphs.rnnlm", "a").name
    assert cache.location("graphs.rnnlm", "a").name.startswith("rnnlm-")
    behind = cache._imported("graphs.rnnlm")
    assert {
        "graphs.rnnlm",
        "graphs.recurrent",
        "graphs.models",
        "placeto.capture.trace",
        "placeto.capture.building.ops",
    } <= behind
    assert not behind & {"graphs.gnmt", "graphs", "torch"}, "other families change without a new capture"


@pytest.mark.parametrize(
    "line",
    [
        "from somebodys.layers import WIDTH",
        "from somebodys import layers",
        "import somebodys.layers",
        "from .layers import WIDTH",
        "from . import layers",
    ],
)
def test_changed_source_is_captured_again(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somebodys"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(f"{line}\n")
    (package / "layers.py").write_text("WIDTH = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("somebodys.model")
    cache._source_hash.cache_clear()
    before = cache.location("somebodys.model", "a")
    (package / "layers.py").write_text("WIDTH = 2\n")
    cache._source_hash.cache_clear()
    assert cache.location("somebodys.model", "a") != before
    for name in ("somebodys", "somebodys.model", "somebodys.layers"):
        del sys.modules[name]


def tiny_family() -> ModelFamily:
    def network(steps: int) -> rnnlm.Network:
        return rnnlm.Network(layers=1, hidden=4, steps=steps, batch=2, words=5)

    networks = {"train": (network(2), network(3)), "validation": (network(4),), "test": (network(5),)}
    return ModelFamily("tiny", "a small recurrent network", rnnlm.training_step, networks)


def test_a_family_loads_what_it_captures(folder: Path) -> None:
    family = tiny_family()
    first = family.load("train", 1)
    assert first.name == "tiny:train:1"
    assert first.hash == family.capture("train", 1).hash != family.load("train", 0).hash
    assert len(list(folder.iterdir())) == 2
    assert replace(family, name="alias").load("train", 1).name == "alias:train:1"
    assert len(list(folder.iterdir())) == 2, "the same network is shared"


def test_a_drawn_family_is_captured_once(folder: Path) -> None:
    drawn: list[int] = []

    def sample(rng: np.random.Generator) -> TrainingStep:
        drawn.append(int(rng.integers(2, 1000)))
        return TrainingStep(torch.nn.Linear(drawn[-1], 2), (torch.empty(1, drawn[-1]),), (), lambda y: y.sum())

    family = Family("drawn", "one layer", sample, splits={"train": 2})
    graphs = [family.load("train", index) for index in (0, 1, 0)]
    assert len(drawn) == len(list(folder.iterdir())) == 2
    assert graphs[0].hash == graphs[2].hash != graphs[1].hash
    assert graphs[2].hash == family.capture("train", 0).hash
    with pytest.raises(ValueError, match="drawn:train has graphs 0 to 1"):
        replace(family, endless=()).load("train", 2)


def test_training_graphs_have_no_end_and_are_never_those_of_other_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four models, of which the test split has one or two."""

    def sample(rng: np.random.Generator) -> TrainingStep:
        width = int(rng.integers(1, 5))
        return TrainingStep(torch.nn.Linear(width, 2), (torch.empty(1, width),), (), lambda y: y.sum())

    family = Family("few", "one layer", sample, splits={"train": 1, "test": 2})
    monkeypatch.setitem(families(), "few", (None, {"few": family}))
    test = {graph.likeness for graph in load_split("few", "test").values()}
    train = load_split("few", "train", 12)
    assert list(train) == [graph.name for graph in train.values()] == [f"few:train:{i}" for i in range(12)]
    drawn = [graph.likeness for graph in list(train.values())[1:]]
    assert not test & set(drawn)
    assert len(set(drawn)) == 4 - len(test)
    assert resolve_graph("few:train:11")[1].hash == train["few:train:11"].hash
    with pytest.raises(PlacerError, match="few:test has 2 graphs: 1 to 2 can be taken, not 3"):
        load_split("few", "test", 3)


def test_a_family_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_family("gnmt-8") is MODELS["gnmt-8"]
    monkeypatch.setitem(families(), "tiny", (None, {"tiny": tiny_family()}))
    name, graph = resolve_graph("tiny:test:0")
    assert (name, graph.name) == ("tiny:test:0", "tiny:test:0")
    assert list(load_split("tiny", "train")) == ["tiny:train:0", "tiny:train:1"]


def test_unknown_graphs_are_refused() -> None:
    for call in (tiny_family().load, tiny_family().build, tiny_family().capture):
        with pytest.raises(ValueError, match="tiny:test has graphs 0 to 0, there is no 1"):
            call("test", 1)
        with pytest.raises(ValueError, match="family 'tiny' has no split 'dev'; its splits: train, validation, test"):
            call("dev", 0)


def test_long_captures_show_how_far_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_progress, "PATIENCE_S", -1.0)
    monkeypatch.setattr("placeto.plumbing.progress.LINE_EVERY_S", 0.0)
    with torch.device("meta"):
        step = gnmt.training_step(gnmt.Network(2, 4, 2, 2, 5))
    graph = capture_with_progress(step, "long")
    lines = capsys.readouterr().err.splitlines()
    shares = [int(match[1]) for line in lines if (match := re.fullmatch(r"capturing long: (\d+) % .*", line))]
    assert len(shares) == len(lines) > 50
    assert shares == sorted(shares)
    assert any(30 <= share <= 35 for share in shares)
    assert sum(35 < share < 90 for share in shares) > 20
    assert lines[-1] == f"capturing long: 100 % {graph.num_ops:,} ops"


def test_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache.directory() == tmp_path / "cache"
    monkeypatch.setenv("PLACETO_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.directory() == tmp_path / "placeto"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.directory() == tmp_path / "home" / ".cache" / "placeto"
