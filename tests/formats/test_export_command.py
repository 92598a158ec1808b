"""The command that exports plans: each tool gets its file or its folder, and is told why it gets none."""

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from placeto.formats.exports.layer_tools import LAYER_TOOLS
from placeto.formats.placement import load_placement, save_placement
from placeto.formats.plan import PlanFile, save_plan
from placeto.heuristics.pipelines.plans import make_plan
from placeto.planning.single_ways import in_order
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import load_graph, save_graph
from placeto.problem.problem import PlacementProblem
from tests.command_line import fails, run
from tests.formats.test_layer_tools import sourced
from tests.formats.test_whole_layers import TRAINING
from tests.formats.torch_toys import save_planned
from tests.planning.test_short_memory import Chosen

TOOLS = {
    **dict.fromkeys(LAYER_TOOLS, ("", r"^stage 0 +gpu:0: 0 to 1$", "")),
    "megatron": ("--micro-batches", r"^stage 0 +gpu:0: 0 to 1$", "the size of the batch isn't known"),
    "torchtitan": ("--micro-batches", "as torchtitan runs it, in whole chunks", "other names than in torchtitan"),
    "torch-pipeline": ("--micro-batches", r" by ops, \S+ \S+ as torch runs it", "give run.py one, --factory file.py:f"),
}
"""Of each: the option of a training, what is printed, and what is noted where only the graph is given."""


@pytest.mark.usefixtures("net_file")
@pytest.mark.parametrize("tool", TOOLS)
def test_the_command_exports_plans_and_no_free_placements(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    option, printed, note = TOOLS[tool]
    kind = (option, "4") if option else ("--inference",)
    step, on = ("net.py:net", *kind, "--cluster", "2xk80"), ("--format", tool, "--placement", "placement.json", "-o")
    assert run("capture", "net.py:net", *kind, "-o", "net.json") == 0
    assert run("place", *step, "--placer", "roundrobin", "-o", "placement.json") == 0
    capsys.readouterr()
    told = fails(capsys, "export", *step, *on, "out")
    free = "the placement has no plan: it is a free placement of ops, or its file is older: place with --placer"
    assert (free if option else "gpu:0 has layer 0 and layer 2; ") in told
    assert not Path("out").exists()
    if option:
        inference = ("net.py:net", "--inference", "--cluster", "2xk80")
        assert run("place", *inference, "--placer", "roundrobin", "-o", "placement.json") == 0
        capsys.readouterr()
        assert "no training step in micro-batches" in fails(capsys, "export", *inference, *on, "out")
    save_planned(load_graph("net.json"), "2xk80", [(0,), (1,)], "placement.json")
    assert run("export", "net.json", "--cluster", "2xk80", *on, "of_graph") == 0
    assert note in capsys.readouterr().err
    assert run("export", *step, *on, "out") == 0
    out = capsys.readouterr().out
    assert re.search(printed, out, re.MULTILINE)
    assert "simulated" in out
    if tool == "megatron":
        assert sourced(Path("out").read_text())[0]["--global-batch-size"] == "16"
        assert sourced(Path("of_graph").read_text())[0]["--micro-batch-size"] == "1"
    if tool == "torchtitan":
        told = runpy.run_path("out/parallelism.py")
        assert told["PARALLELISM"]["pipeline_parallel_microbatch_size"] == 4
        assert told["TRAINING"] == {"local_batch_size": 16, "global_batch_size": 16}


def test_what_megatron_recomputes_otherwise_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_graph(TRAINING, "net.json")
    problem = PlacementProblem(TRAINING, load_cluster("2xv100"))
    plain = make_plan(problem, ((0,), (1,)))
    few = "the plan recomputes 1, 0 of them in its stages, or parts of these, and takes less time"
    for paths, note in (
        (("body.h.0.wide",), f"Megatron-LM recomputes the first layers of each stage, equally many; {few}"),
        (("norm",), "Megatron-LM recomputes no norm, as the plan does: the step takes more memory"),
    ):
        plan = replace(plain, recomputed=paths)
        (step,) = in_order(problem, plan, Chosen(lambda moved: False))
        assert step.placement is not None
        save_placement(step.placement, "placement.json")
        words = ("net.json", "--cluster", "2xv100", "--placement", "placement.json", "--format", "megatron")
        assert run("export", *words, "-o", "out") == 0
        err = capsys.readouterr().err
        assert note in err
        assert err.count("Megatron-LM recomputes") == 1


@pytest.mark.usefixtures("net_file")
def test_a_torch_pipeline_is_told_how_to_run_and_keeps_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    step = ["net.py:net", "--cluster", "2xk80", "--micro-batches", "4", "--set", "layers=5"]
    assert run("place", *step, "--placer", "torch-pipeline", "-o", "placement.json") == 0
    export = ["export", *step, "--placement", "placement.json", "--format", "torch-pipeline", "-o", "out"]
    for printed, told in (
        ("torchrun --standalone --nproc-per-node 2 out/run.py", ""),
        ("", "run.py was there already and stays as it is"),
    ):
        capsys.readouterr()
        assert run(*export) == 0
        captured = capsys.readouterr()
        assert printed in captured.out
        assert told in captured.err
        assert bool(captured.err) is bool(told)
    plan = json.loads(Path("out/plan.json").read_text())
    assert (plan["factory"], plan["settings"], plan["micro_batches"]) == ("net.py:net", {"layers": 5}, 4)


@pytest.mark.usefixtures("net_file")
def test_plans_of_files_are_exported_but_not_of_those_before_plans_had_stages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("capture", "net.py:net", "--micro-batches", "4", "-o", "net.json") == 0
    save_planned(load_graph("net.json"), "2xk80", [(0,), (1,)], "placement.json")
    placement = load_placement("placement.json")
    way = "pipeline", "2 stages x 1", 4, "own list", "torch-pipeline", 16, 1234.5
    facts = *way, {"weights": 1}, 2, True, load_cluster("2xk80").hash, placement.plan
    save_plan(PlanFile(*facts, replace(placement, plan=None)), "placement.json")
    export = ["export", "net.json", "--cluster", "2xk80", "--placement", "placement.json", "--format", "torch-pipeline"]
    assert run(*export, "-o", "out") == 0
    capsys.readouterr()
    document = json.loads(Path("placement.json").read_text())
    assert document.pop("plan") == placement.plan
    Path("placement.json").write_text(json.dumps(document | {"format": "placeto.plan/1"}))  # as it was written before
    assert "the placement has no plan" in fails(capsys, *export, "-o", "other")
