from pathlib import Path

import numpy as np
import pytest

from experiments.peers import cut_schedule, equal_devices
from placeto.formats.graphs_of_others.stg import load
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator


@pytest.mark.parametrize("sent", [0, 10])
def test_a_cut_schedule_is_met_by_the_placement_that_it_was_cut_from(tmp_path: Path, sent: int) -> None:
    path = tmp_path / "cut.stg"
    path.write_text("\n".join(cut_schedule(np.random.default_rng(1), 40, 200, sent)))
    problem = PlacementProblem(load(path), equal_devices(4), dispatch="list")
    assert problem.lower_bound_us == 200 == problem.op_time[:, 0].sum() / 4
    # Tasks come by start: each runs on the first device that has ended by then.
    free, placement, starts = np.zeros(4), [], []
    for op in range(problem.num_ops):
        placement.append(int(free.argmin()))
        starts.append(free.min())
        free[placement[-1]] += problem.op_time[op, 0]
    assert sorted(starts) == starts
    if sent == 0:  # else who sends to whom matters, and devices of one start could be another's
        evaluator = Evaluator(problem, None)
        evaluator.score_ops(np.array(placement))
        assert evaluator.best_score == 200
