"""Plan files, as `placeto plan -o` writes them and other commands read them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from placeto.errors import PlacementError
from placeto.formats.placement import load_placement
from placeto.formats.plan import load_plan, save_plan
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import load_graph
from tests.command_line import NET, fails, run
from tests.formats.torch_toys import save_planned

MODEL = NET.replace("torch.randn(16, 512)", "torch.randn(4096, 512)")
ON = ("--cluster", "2xcpu-core")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    plan = ("--micro-batches", "4", "--runnable-by", "torch", "--headroom", "1MB", "-o", "plan.json")
    assert run("plan", "net.py:net", "--cluster", "2xcpu-core", *plan) == 0
    capsys.readouterr()
    return Path("plan.json")


def test_a_plan_is_read_as_it_was_written(path: Path) -> None:
    plan = load_plan(path)
    assert plan.cluster_hash == load_cluster("2xcpu-core").hash
    assert plan.micro_batches == 4
    assert plan.fits
    assert sum(plan.memory.values()) <= plan.room
    assert plan.placement is not None
    assert load_placement(path) == replace(plan.placement, plan=plan.plan)
    save_plan(plan, "again.json.gz")
    assert load_plan("again.json.gz") == plan
    with pytest.raises(PlacementError, match=r"must end in \.json"):
        save_plan(plan, "plan.txt")


def test_commands_take_the_micro_batches_of_a_plan(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("simulate", "net.py:net", "--placement", path, *ON) == 0
    assert run("report", "net.py:net", "--placement", path, *ON, "-o", "page.html", "--against", "none") == 0
    assert run("simulate", "net.py:net", "--placement", path, *ON, "--trace", "trace.json") == 0
    given = ("--micro-batches", "2")
    says = "--micro-batches 2: plan.json is a plan with 4 micro-batches: leave the option out"
    capsys.readouterr()
    assert says in fails(capsys, "simulate", "net.py:net", "--placement", path, *ON, *given)
    assert says in fails(capsys, "run", "net.py:net", "--plan", path, "--devices", "cpu:0,cpu:1", *given)


def test_a_plan_for_something_else_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "net.py:net", "--placement", path)
    assert "plan.json: the plan is for another cluster" in fails(capsys, *words, "--cluster", "2xv100")
    assert "is for another graph" in fails(capsys, *words, *ON, "--set", "layers=5")
    Path("other.json").write_text(json.dumps(json.loads(path.read_text()) | {"placement": {}}))
    assert "other.json: " in fails(capsys, *words[:3], "other.json", *ON)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"step_us": -1}, "step_us must be >= 0"),
        ({"micro_batches": "4"}, "micro_batches must be an integer"),
        ({"cluster_hash": None}, "cluster_hash must be a string"),
        ({"plan": {"layers": 4, "stages": [{"first_layer": 0}]}}, r"plan.stages\[0\].replicas is missing"),
        ({"plan": []}, "plan must be an object"),
        ({"more": 1}, "more is unknown"),
        ({"placement": {}}, 'placement: not a placement file: "format" must be'),
    ],
)
def test_damaged_fields_of_a_plan_are_refused_by_all_readers(wrong: dict[str, object], says: str, path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    for reader in (load_plan, load_placement):
        with pytest.raises(PlacementError, match=rf"plan\.json: {says}"):
            reader(path)


def test_a_plan_that_is_not_the_placements_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("capture", "net.py:net", "--micro-batches", "4", "-o", "net.json") == 0
    save_planned(load_graph("net.json"), "2xcpu-core", [(0,), (1,)], "placement.json", whole_chunks=True)
    said, file = json.loads(Path("placement.json").read_text()), Path("placement.json")
    export = ("export", "net.json", "--placement", file, *ON, "--format", "torch-pipeline", "-o")
    assert run(*export, "out") == 0
    plan, other = said["plan"], {"cpu:0": "cpu:1", "cpu:1": "cpu:0"}
    turned = [
        stage | {"replicas": [one | {"device": other[one["device"]]} for one in stage["replicas"]]}
        for stage in plan["stages"]
    ]
    for wrong, told in (
        ({"stages": turned}, "the plan has .* on another device than the placement"),
        ({"stages": plan["stages"][:1]}, "the plan has .* on another device than the placement"),
        ({"layers": plan["layers"] + 1}, "the plan is for 5 layers in 4 micro-batches, .* has 4 layers"),
    ):
        file.write_text(json.dumps(said | {"plan": {key: plan[key] for key in ("layers", "stages")} | wrong}))
        capsys.readouterr()
        assert re.search(told, fails(capsys, *export, "other"))
    for before, after, told in (
        ("F", "B", "or not again"),
        ("0B", "0I", "the order of the plan has no chunk 0B0: plan this step anew"),
        ("1W", "1B", "has a chunk that the step doesn't have, 1B0"),
    ):
        chunks = {device: [chunk.replace(before, after) for chunk in ran] for device, ran in plan["chunks"].items()}
        file.write_text(json.dumps(said | {"plan": plan | {"chunks": chunks}}))
        assert told in fails(capsys, *export, "other")
