import json

import numpy as np
import pytest

from experiments.golden import RECORD, compare
from experiments.golden_cells import BATCH, MICRO_BATCHES, MODELS, Cell, Cells, captured, compute, described, named
from placeto.problem.step.plan import Plan

RECORDED: Cells = json.loads(RECORD.read_text())


@pytest.mark.parametrize("group", ["plans/MLP", "torch/tied language model", "replicas/MLP", "pipeline_steps/waiting"])
def test_numbers_are_near_those_of_the_record(group: str) -> None:
    cells = compute(group)
    recorded = {cell: numbers for cell, numbers in RECORDED.items() if cell.startswith(f"{group}/")}
    assert cells is not None
    assert len(cells) >= 4
    assert compare(cells, recorded)[2] == []


def test_a_plan_is_named_by_its_devices_and_borders() -> None:
    assert described(Plan(((0, 1), (2,)), (5,), (((0,), (1,)), ((0, 1),)), 9)) == "0+1|2 at 5"
    assert described(Plan(((0, 1),), (), (((0,), (1,)),), 9, whole=True)) == "0+1 of whole modules"


def test_models_are_what_they_are_called() -> None:
    graphs = {name: captured(name) for name in MODELS}
    for graph in graphs.values():
        assert np.unique(graph.micro_batches).tolist() == [-1, *range(MICRO_BATCHES)]
    plain, tied = graphs["language model"], graphs["tied language model"]
    assert plain.param_bytes.sum() - tied.param_bytes.sum() == 512 * 64 * 4
    assert {"bfloat16"} == set(graphs["language model in bf16"].dtypes) - set(plain.dtypes)
    assert "aten.bernoulli" in graphs["language model with dropout"].op_types
    assert any("batch_norm" in kind for kind in graphs["convolutions"].op_types)
    assert BATCH % MICRO_BATCHES == 0


def test_cells_of_one_name_are_refused() -> None:
    assert named("gate/nmt", [("", {"us": 1.0})]) == {"gate/nmt": {"us": 1.0}}
    cells: list[tuple[str, Cell]] = [("0|1 at 3", {"us": 1.0}), ("0|1 at 3", {"us": 2.0})]
    with pytest.raises(ValueError, match=r"two cells have the name plans/MLP/0.1 at 3"):
        named("plans/MLP", cells)


def test_measured_plans_are_left_out_where_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert compute("outside_sailor/measured") is None
