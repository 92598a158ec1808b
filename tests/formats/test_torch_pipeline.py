"""The folder that torchrun trains from, as the command writes it."""

import csv
import json
import re
from pathlib import Path

import pytest

from placeto.errors import PlacerError, PlanError
from placeto.evaluation.comparison import PlacerSpec, evaluate
from placeto.formats.exports import save_torch_pipeline, torch_pipeline
from placeto.placers import load_placer
from placeto.problem.cluster import Device, load_cluster
from placeto.problem.problem import PlacementProblem
from tests.formats.torch_toys import captured, chain, planned, tied
from tests.problem.test_files import limited
from tests.toys import linked


def test_the_plan_says_which_rank_runs_what(tmp_path: Path) -> None:
    made = torch_pipeline(planned(captured(chain()), [(0, 1), (3, 2)]))
    save_torch_pipeline(made, tmp_path / "out", "net.py:net", {"layers": 4}, "mean")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["format"] == "placeto.torch-pipeline/1"
    assert (plan["factory"], plan["settings"], plan["loss"]) == ("net.py:net", {"layers": 4}, "mean")
    assert plan["module_fqns_per_model_part"] == [["0", "1"], ["2", "3"]]
    assert plan["split_points"] == [["2", "beginning"]]
    assert plan["devices"] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
    assert [replica["ranks"] for replica in plan["replicas"]] == [[0, 3], [1, 2]]
    assert [replica["stages"] for replica in plan["replicas"]] == [[0, 3], [1, 2]]
    assert [replica["micro_batches"] for replica in plan["replicas"]] == [[0, 2], [1, 3]]
    for replica in plan["replicas"]:
        rows = list(csv.reader((tmp_path / "out" / replica["schedule"]).read_text().splitlines()))
        assert len(rows) == 2
        assert all(re.fullmatch(r"[01][FIWB][01]", cell) for row in rows for cell in row)


@pytest.mark.parametrize(("cluster", "micro_batches"), [("2xk80", 6), ("2x4xv100", 4), ("2xv100+2xp100", 6)])
def test_the_placer_finds_what_torch_runs(cluster: str, micro_batches: int) -> None:
    problem = PlacementProblem(captured(chain(8), micro_batches), load_cluster(cluster))
    found = load_placer("torch-pipeline")(problem)
    made = torch_pipeline(found.schedule())
    assert made.num_ranks > 1


def test_the_placer_keeps_a_shared_weight_in_one_stage_or_refuses() -> None:
    made = torch_pipeline(
        load_placer("torch-pipeline")(PlacementProblem(captured(tied()), load_cluster("2xk80"))).schedule()
    )
    assert made.num_ranks == 2  # replicas
    assert len(made.modules) == 1
    slow, fast = Device("a", "slow", 1e12, 1e12, 10**9), Device("b", "fast", 3e12, 1e12, 10**9)
    uneven = linked([slow, fast], 1e4, "uneven")
    message = (
        "^torch runs no pipeline of this step on uneven: .* is read before it by 0 and behind it by 3; .* untie it"
    )
    with pytest.raises(PlanError, match=message):
        load_placer("torch-pipeline")(PlacementProblem(captured(tied()), uneven))
    specs = [PlacerSpec("theirs", "torch-pipeline")]
    with pytest.raises(PlacerError, match=r"^theirs on mine: torch runs .* untie it.*leave one of the two out$"):
        evaluate({"mine": captured(tied())}, uneven, specs, processes=1)


def test_a_program_that_was_changed_stays_and_half_of_one_does_not(tmp_path: Path) -> None:
    made = torch_pipeline(planned(captured(chain()), [(3,), (1,)]))
    with limited(5000), pytest.raises(OSError, match="File too large"):
        save_torch_pipeline(made, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["schedule-0.csv"]
    save_torch_pipeline(made, tmp_path)
    assert (tmp_path / "run.py").read_text().startswith('"""Trains a model in the pipeline of plan.json')
    assert (tmp_path / "run.py").read_text().endswith("main()\n")
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["devices"], plan["replicas"][0]["stages"], plan["factory"]) == (["gpu:1", "gpu:3"], [1, 0], None)
    (tmp_path / "run.py").write_text("mine")
    save_torch_pipeline(made, tmp_path)
    assert (tmp_path / "run.py").read_text() == "mine"
