"""Replicas that are exported and run by torchrun, against the whole model."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from placeto.errors import PlanError
from placeto.formats.exports import torch_replicas_run
from placeto.formats.exports.torch_replicas import replicas_of, save_torch_replicas
from placeto.formats.plan import PlanFile, save_plan
from placeto.problem.cluster import load_cluster
from tests.command_line import fails, run
from tests.forked_ranks import run_ranks

NET = f"{Path(__file__).with_name('small_net.py')}:net"


def way(micro_batches: list[list[int]], sharding: int = 0, width: int = 1, recomputed: Sequence[str] = ()) -> PlanFile:
    replicas = [{"device": f"gpu:{number}", "micro_batches": taken} for number, taken in enumerate(micro_batches)]
    stage = {"first_layer": 0, "replicas": replicas, "sharding": sharding}
    plan: Any = {"layers": 4, "stages": [stage], "width": width, "recomputed": list(recomputed)}
    how = "replicas", f"{len(replicas)} replicas", sum(map(len, micro_batches)), "program", "torch", 16
    return PlanFile(*how, 1000.0, {"weights": 1}, 2, True, 64 * "0", plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planned", "factory"),
    [
        (way([[0, 2], [1, 3]], sharding=3, width=2, recomputed=("layers.1",)), NET.replace(":net", ":with_loss")),
        (way([[0, 2], [1, 3]], sharding=3, recomputed=("1",)), NET),
        (way([[0, 1, 2], [3]], sharding=1, recomputed=("0", "2")), NET),
    ],
    ids=["FSDP of groups, own loss and plan", "FSDP", "ZeRO"],
)
def test_replicas_train_as_the_whole_model_does(planned: PlanFile, factory: str, tmp_path: Path) -> None:
    ranks = save_torch_replicas(planned, tmp_path / "made", factory)
    run_py = str(tmp_path / "made" / "run.py")
    out = run_ranks(run_py, "--steps", "3", "--device", "cpu", "--check", ranks=ranks, folder=tmp_path)
    found = re.search(r"^model: 20 gradients, off by (\S+) at most$", out, re.MULTILINE)
    assert float(found[1]) < 1e-6
    losses = re.findall(r"^step \d: loss (\S+), \S+ ms; whole model: loss (\S+)$", out, re.MULTILINE)
    assert len(losses) == 3
    assert all(float(one) == pytest.approx(float(other), rel=1e-4) for one, other in losses)
    assert len({one for one, _ in losses}) == 3, "it learns"


@pytest.mark.slow
def test_blocks_of_containers_are_sharded_and_recomputed(tmp_path: Path) -> None:
    """Containers are never called, and the model is in one, as those of transformers are in `model`."""
    planned = way([[0, 2], [1, 3]], sharding=3, recomputed=("model.levels.0.up",))

    def train(factory: str) -> str:
        save_torch_replicas(planned, tmp_path / "made", NET.replace(":net", factory))
        run_py = str(tmp_path / "made" / "run.py")
        return run_ranks(run_py, "--steps", "1", "--device", "cpu", "--check", ranks=2, folder=tmp_path)

    out = train(":features")
    found = re.search(r"^model: 26 gradients, off by (\S+) at most$", out, re.MULTILINE)
    assert float(found[1]) < 1e-6
    # on each rank both loud blocks are called in two micro-batches, one of them again, and in four of the whole model
    assert out.count("a loud block is called") == 2 * (2 * (2 + 1) + 4 * 2)
    with pytest.raises(AssertionError, match="error: a weight is read while its block isn't being called"):
        train(":features(apart=True)")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"batch": 32}, "the plan is for a batch of 32 in 2 micro-batches, not of 16"),
        ({"plan": way([[0, 1]], recomputed=["h.0"]).plan}, "the plan is for another model: .* has no attribute `h`"),
    ],
)
def test_a_plan_of_another_step_is_refused(
    changed: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_torch_replicas(replace(way([[0, 1]]), **changed), tmp_path, NET)
    for name, value in {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["run.py", "--device", "cpu"])
    monkeypatch.setattr(torch_replicas_run, "HERE", tmp_path)
    try:
        with pytest.raises(SystemExit, match=why):
            torch_replicas_run.main()
    finally:
        torch.distributed.destroy_process_group()


def test_the_folder_needs_no_placeto(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = load_cluster("4xv100").hash
    save_plan(replace(way([[0], [1]], width=2), cluster_hash=cluster), tmp_path / "plan.json")
    given = "--cluster", "4xv100", "--placement", tmp_path / "plan.json", "--format", "torch-replicas"
    for again in (False, True):
        assert run("export", NET, *given, "-o", tmp_path / "made") == 0
        out, err = capsys.readouterr()
        assert f"run          torchrun --standalone --nproc-per-node 4 {tmp_path}/made/run.py" in out
        assert ("was there already" in err) == again
    for program in (tmp_path / "made").glob("*.py"):
        assert "import placeto" not in program.read_text()
        assert "from placeto" not in program.read_text()
    document = json.loads((tmp_path / "made/plan.json").read_text())
    assert (document["width"], document["micro_batches"], document["sharding"]) == (2, [[0], [1]], 0)


def test_what_torch_cannot_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlanError, match="ZeroRedundancyOptimizer can't share out"):
        replicas_of(way([[0], [1]], sharding=1, width=2))
    with pytest.raises(PlanError, match="FSDP needs as many micro-batches on each replica"):
        save_torch_replicas(way([[0, 1], [2]], sharding=2), tmp_path / "made")
    assert not (tmp_path / "made").exists()
    pipeline = way([[0]])
    pipeline.plan["stages"] *= 2
    with pytest.raises(PlanError, match="its way, 'replicas', isn't one of replicas: run it with torch"):
        replicas_of(pipeline)
    save_plan(way([[0], [1]]), tmp_path / "plan.json")
    one = "--plan", tmp_path / "plan.json", "--devices", "cpu:0"
    assert "the plan runs on 2 devices, not on 1" in fails(capsys, "run", NET, *one)
