"""PipeDream's plans are found again, and a profile becomes a step in micro-batches that sums its gradients."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.outside_pipedream import (
    DATA,
    PipeDream,
    Plan,
    Profile,
    best_plan,
    cost_us,
    in_micro_batches,
    its_sets,
    main,
    placed,
)
from placeto.formats.graphs_of_others.pipedream import load
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.toys import alike, linked

CHAIN = """\
node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=8.0, parameter_size=0.0
node2 -- Linear(1) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=0.0
node3 -- Linear(2) -- forward_compute_time=2.0, backward_compute_time=4.0, activation_size=8.0, parameter_size=5e6
node4 -- Linear(3) -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=2e9
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4
"""
shared = pytest.mark.skipif(not (DATA / "pipedream").exists(), reason="the profiles lie beside the project")


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    path = tmp_path / "chain.graph.txt"
    path.write_text(CHAIN)
    return Profile.of(load(path))


def test_a_chain_is_cut_and_replicated_by_the_definition(profile: Profile) -> None:
    assert profile.names == ("node2", "node3", "node4")
    assert len(its_sets(profile)) == 3
    # of 9 ms two replicas of 9 ms / 2 + 1 ms for 4 x 1/2 x 5 MB over 10 GB/s, / 2; the parameters of node4 stay alone
    plan = best_plan(profile, its_sets(profile), 3, 1e10)
    assert (plan.words(), plan.devices()) == ("2 x 2 + 1 x 1", ((0, 1), (2,)))
    assert cost_us(profile, plan, 1e10) == pytest.approx((9000.0 + 1000.0) / 2)


def test_a_step_in_micro_batches_sums_gradients_on_the_replicas(profile: Profile) -> None:
    graph = in_micro_batches(profile.graph, 4)
    assert len(gradient_sums(graph).home) == 2
    assert int(graph.param_bytes.sum()) == int(profile.graph.param_bytes.sum())
    problem = PlacementProblem(graph, linked(alike(*[10**12] * 3), 1e9))
    placement = placed(profile, problem, Plan(np.array([0, 0, 1]), (2, 1)))
    on = dict(zip(graph.op_names, placement.tolist(), strict=True))
    assert [on[f"node3/grad@{batch}"] for batch in range(4)] == [0, 1, 0, 1]
    assert [on[f"node1@{batch}"] for batch in range(4)] == [0, 1, 0, 1]
    assert on["node4/parameter"] == on["node4@3"] == 2
    assert simulate(problem, placement).makespan_us >= 4 * 9000.0 / 2


@shared
def test_its_plans_are_found_again() -> None:
    rows = json.loads((DATA / "parallel" / "golden.json").read_text())["pipedream_plans"]["rows"]
    for row in rows:
        found = Profile.of(load(DATA / "pipedream" / f"{row['graph']}.graph.txt"))
        its = best_plan(found, its_sets(found), 4, 1e10)
        assert cost_us(found, its, 1e10) / 1e3 == pytest.approx(row["stage_ms"], abs=0.005)


@shared
def test_the_table_has_a_line_for_each_profile(capsys: pytest.CaptureFixture[str]) -> None:
    main(PipeDream(graphs=("vgg16",), micro_batches=6))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| vgg16")]
    assert "| 170.18 | 170.18 |" in lines[0]
    assert len(lines) == 2
