"""A plan is run by torchrun in one command."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from placeto.formats.placement import load_placement
from placeto.formats.plan import PlanFile, save_plan
from placeto.problem.cluster import load_cluster, save_cluster
from placeto.runtime import torchrun
from tests.cases import with_devices
from tests.cli.test_cli_plan import CHECKPOINTED
from tests.command_line import NET, fails, run
from tests.forked_ranks import run_ranks

STEP = ("net.py:net", "--micro-batches", "2")
ROOFLINE = ("--costs", "roofline")
RUN = ("run", *STEP, "--plan", "plan.json", "--devices", "cpu:0,cpu:1")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a plan of the step on two cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("planned"))
        Path("net.py").write_text(NET)
        assert run("place", *STEP, "--cluster", "2xcpu-core", "--placer", "torch-pipeline", "-o", "plan.json") == 0
        return Path("plan.json").read_text()


@pytest.fixture(autouse=True)
def folder(net_file: None, planned: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    Path("plan.json").write_text(planned)
    capsys.readouterr()
    return tmp_path


@pytest.mark.slow
def test_replicas_train_as_the_whole_model_does(folder: Path) -> None:
    """`placeto run` itself runs a pipeline in tests/formats/test_torch_run.py."""
    export = ("export", *STEP, "--cluster", "2xcpu-core", "--placement", "plan.json", "--format", "torch-pipeline")
    assert run(*export, "-o", "made") == 0
    out = run_ranks("made/run.py", "--check", "--steps", "3", "--device", "cpu", ranks=2, folder=folder)
    (apart,) = re.findall(r"gradients, off by (\S+) at most", out)
    assert float(apart) < 1e-6
    losses = re.findall(r"^step \d: loss (\S+), \S+ ms; whole model: loss (\S+)$", out, re.MULTILINE)
    assert len(losses) == 3
    assert all(float(one) == pytest.approx(float(other), rel=1e-4) for one, other in losses)


def test_why_a_step_takes_another_time_than_the_file_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torchrun, "torchrun", lambda *given, **more: [1e3] * 22)

    def costs(*options: str) -> str:
        """Those by which the program is simulated."""
        assert run(*RUN, *options) == 0
        out, err = capsys.readouterr()
        simulated = re.search(r"simulated (\S+ \w+)$", out, re.MULTILINE)
        told = r"note: plan.json says \S+ ms, op by op, by the costs efficiency \w+; torchrun runs it in whole chunks, "
        told += rf"then adds up gradients, which takes {simulated[1]} simulated, by the costs (.*)\n"
        return re.fullmatch(told, err)[1]

    assert costs().startswith("efficiency ")
    assert costs("--costs", "roofline") == "roofline"
    placement = load_placement("plan.json")
    cluster_hash = load_cluster("2xcpu-core").hash
    facts = {"weights": 1}, 2, True, cluster_hash, placement.plan, replace(placement, plan=None)
    way = "data parallel", "2 replicas", 2, "program", "torch DDP", 16, 1234.5
    save_plan(PlanFile(*way, *facts), "plan.json")
    assert run(*RUN) == 0
    out, err = capsys.readouterr()
    assert out.endswith(", simulated 1.23 ms\n"), "replicas run as they were planned"
    assert err == ""
    way = "free placement", "on 2 devices", 2, "own list", "placeto run", 16, 1234.5
    save_plan(PlanFile(*way, *facts), "plan.json")
    message = "plan.json: its way is a free placement, which torch can't run: give the file as --placement plan.json"
    assert message in fails(capsys, *RUN)


def test_what_a_step_needs_beyond_the_plan_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torchrun, "torchrun", lambda *given, **more: [1e3] * 22)
    Path("checkpointed.py").write_text(CHECKPOINTED)
    words = ("checkpointed.py:net", "--micro-batches", "2")
    assert run("place", *words, "--cluster", "2xcpu-core", "--placer", "torch-pipeline", "-o", "plan.json") == 0
    save_cluster(with_devices("2xcpu-core", memory=1_000_000), "small.json")
    capsys.readouterr()
    made = json.loads(Path("plan.json").read_text())
    used = len(set(made["placement"].values()))
    names = ",".join(f"cpu:{core}" for core in range(used))
    assert run("run", *words, "--plan", "plan.json", "--devices", names, "--cluster", "small.json") == 0
    told = capsys.readouterr().err
    assert "as torch runs it, it doesn't fit in the memory of" in told
    assert "torch traces the model without its activation checkpoints" in told


def test_mistakes_are_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    one = ("run", *STEP, "--devices", "cpu:0", "--plan", "plan.json")
    assert "--devices cpu:0: the plan runs on 2 devices, not on 1" in fails(capsys, *one)
    assert "2xv100" in fails(capsys, *RUN, "--cluster", "2xv100")
    other = ("run", "net.py:net", "--micro-batches", "4", *RUN[4:])
    assert "the placement is for another graph" in fails(capsys, *other)
    whole = ("run", "net.py:net", *RUN[4:])
    assert "the placement is for another graph" in fails(capsys, *whole)


def test_one_device_runs_a_plan_without_micro_batches(capsys: pytest.CaptureFixture[str]) -> None:
    whole = ("--micro-batches", "1", "--simulations", "0")
    assert run("plan", "net.py:net", "--cluster", "2xcpu-core", *whole, "-o", "whole.json") == 0
    capsys.readouterr()
    message = fails(capsys, "run", "net.py:net", "--plan", "whole.json", "--devices", "cpu:0,cpu:1")
    assert "--devices cpu:0,cpu:1: the plan runs on 1 device, not on 2" in message
    other = ("net.py:net", "--optimizer", "sgd")
    export = ("--cluster", "2xcpu-core", "--placement", "whole.json", "--format", "torch-replicas", "-o", "made")
    for command in (("run", *other, "--plan", "whole.json", "--devices", "cpu:0"), ("export", *other, *export)):
        assert "whole.json: the plan is for another step: its hash begins with" in fails(capsys, *command)
    document = json.loads(Path("whole.json").read_text())
    del document["plan"]
    Path("whole.json").write_text(json.dumps(document | {"kind": "whole modules", "run_by": "accelerate"}))
    message = fails(capsys, "run", "net.py:net", "--plan", "whole.json", "--devices", "cpu:0,cpu:1")
    assert (
        "whole.json: its way is whole modules, which is no pipeline of micro-batches: run it with accelerate" in message
    )


def test_plans_that_recompute_are_run_by_torch_alone(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(Path("plan.json").read_text())
    document["plan"]["recomputed"] = ["0"]
    Path("plan.json").write_text(json.dumps(document))
    message = fails(capsys, "run", *STEP, "--placement", "plan.json", "--devices", "cpu:0,cpu:1")
    assert "plan.json: it recomputes modules for the backward pass" in message
    assert "give a pipeline as --plan plan.json" in message
