import numpy as np
import pytest

from experiments.fits import LABELS, FitConfig, collect, neighbours, states_of
from placeto.environment.instance import make_instance
from placeto.simulator.schedule import simulate
from tests.cases import toy_problem

SMALL = FitConfig(train=("ptb:1",), held_out=("ptb",), each=2, labels=4, batch=2)


@pytest.fixture
def problem():
    return toy_problem(3, 40, 3)


@pytest.mark.slow
def test_labels_are_what_the_moves_lead_to(problem):
    states = collect([problem], False, 4, 6, LABELS, 0)
    group, near = make_instance(problem).groups.group, neighbours(make_instance(problem))

    def makespan(row):
        return simulate(problem, row[group]).makespan_us

    for s in range(4):
        before = makespan(states.placement[s])
        for m in np.flatnonzero(states.device[s] >= 0):
            which, device = states.group[s, m], states.device[s, m]
            row = states.placement[s].copy()
            assert row[which] != device
            assert not states.visited[s, which]
            row[which] = device
            single = makespan(row) / before - 1
            together = row.copy()
            together[[other for other in near[which] if other >= 0]] = device
            assert states.change["single"][s, m] == pytest.approx(single, abs=1e-5)
            assert states.change["set"][s, m] == pytest.approx(makespan(together) / before - 1, abs=1e-5)
            after_one = [makespan(row)]
            for other in near[which][near[which] >= 0]:
                more = row.copy()
                more[other] = device
                after_one.append(makespan(more))
            assert states.change["follow"][s, m] <= min(after_one) / before - 1 + 1e-5


def test_problems_that_judge_are_others(tmp_path):
    states, held_out = states_of("groups", SMALL, ("single",))
    names = [{problem.graph.hash for problem in of.batch.problems.problems} for of in (states, held_out)]
    assert not names[0] & names[1]
