"""Measured costs: what an op takes, and files that are refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from placeto.errors import CostsError
from placeto.problem.cluster import Cluster, Device
from placeto.problem.costs.profiled import Fit, OpCost, Profiled, load_profiled, save_profiled, torch_version
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from tests.toys import linked

COSTS = Profiled(
    torch=torch_version(),
    machine="a test",
    ops=(
        OpCost("mm(f32[2,2])", "mm", 16.0, 48.0, {"cpu": 5.0, "gpu": 1.0}),
        OpCost("relu(f32[2])", "relu", 0.0, 16.0, {"cpu": 2.0}),
    ),
    fits={
        "cpu": {"*": Fit(1.0, 0.5, 0.25), "mm": Fit(3.0, 2.0, 0.0)},
        "gpu": {"*": Fit(0.5, 0.0, 0.125)},
    },
    steps=({"name": "net", "kind": "cpu", "signatures": 2, "held_out_error": None, "predicted_us": 7.0,
            "measured_us": 8.0, "eager_us": None},),
)  # fmt: skip
GRAPH = ComputationGraph.from_ops(
    "net",
    [
        {"name": "weight", "type": "parameter", "outputs": [16]},
        {"name": "known", "type": "mm", "signature": "mm(f32[2,2])", "flops": 16, "bytes_accessed": 48},
        {"name": "other", "type": "mm", "signature": "mm(f32[3,3])", "flops": 54, "bytes_accessed": 108},
        {"name": "none", "type": "mm", "flops": 54, "bytes_accessed": 108},
        {"name": "relu", "type": "relu", "signature": "relu(f32[2])", "bytes_accessed": 16},
        {"name": "view", "type": "select", "signature": "select(f32[2],0)"},
    ],
)


def cluster(*kinds: str) -> Cluster:
    return linked([Device(f"d{i}", kind, 1e9, 1e9, 10**9) for i, kind in enumerate(kinds)], name="two")


def test_measured_then_fitted_by_type_then_by_all() -> None:
    problem = PlacementProblem(GRAPH, cluster("cpu", "gpu", "cpu"), COSTS)
    cpu = [0.0, 5.0, 3 + 2 * 54, 3 + 2 * 54, 2.0, 1.0]
    gpu = [0.0, 1.0, 0.5 + 108 / 8, 0.5 + 108 / 8, 0.5 + 16 / 8, 0.5]
    assert problem.op_time.T.tolist() == [cpu, gpu, cpu]


def test_a_kind_that_was_not_measured_is_refused() -> None:
    with pytest.raises(CostsError, match="device 'd1' of cluster 'two' is of kind 'v100'; measured were cpu, gpu"):
        PlacementProblem(GRAPH, cluster("cpu", "v100"), COSTS)


def test_the_name_changes_with_all_that_decides_times_only() -> None:
    slower = replace(COSTS.ops[1], time_us={"cpu": 2.5})
    others = [
        replace(COSTS, ops=(COSTS.ops[0], slower)),
        replace(COSTS, ops=COSTS.ops[:1]),
        replace(COSTS, fits={**COSTS.fits, "gpu": {"*": Fit(0.5, 0.0, 0.25)}}),
    ]
    assert len({COSTS.name, *(other.name for other in others)}) == 4
    assert replace(COSTS, machine="another", steps=(), ops=COSTS.ops[::-1]).name == COSTS.name


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "placeto.graph/1"}, 'not a file of costs: "format" must be "placeto.costs/1"'),
        ({"torch": "1.13.0"}, "measured under torch '1.13.0', this is"),
        ({"fits": {"cpu": {"mm": {"fixed_us": 1, "us_per_flop": 0, "us_per_byte": 0}}}}, "fits['cpu']: '*', the fit"),
        ({"fits": {"gpu": {"*": {"fixed_us": 1, "us_per_flop": 0, "us_per_byte": 0}}}}, "time_us['cpu'] has no fits["),
        ({"ops": 3}, "ops must be a list, not 3"),
    ],
)
def test_bad_files_are_one_line_each(change: dict, says: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    save_profiled(COSTS, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CostsError) as refused:
        load_profiled(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
