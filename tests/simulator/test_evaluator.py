import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.errors import PlacementError
from placeto.problem.grouping import Groups, expand, group_ops
from placeto.problem.problem import PlacementProblem
from placeto.problem.subproblem import on_devices
from placeto.simulator import evaluator as evaluator_module
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.memory import MEMORY_PENALTY
from placeto.simulator.schedule import simulate
from tests.cases import problem_of
from tests.toys import toy_cluster

GB = 1_000_000_000


def two_chains(param_bytes: int = 0) -> PlacementProblem:
    """Two independent chains of three ops, 10 us each; on 2xp100 the optimum is one chain per device."""
    ops = [
        {"name": f"{c}{i}", "time_us": {"*": 10.0}, "outputs": [8], "inputs": [[f"{c}{i - 1}", 0]] if i else []}
        | ({"param_bytes": param_bytes} if i == 0 else {})
        for c in "ab"
        for i in range(3)
    ]
    return problem_of(ops, "2xp100")


ONE, APART = np.zeros(6, np.int64), np.array([0, 0, 0, 1, 1, 1])


def evaluator(problem: PlacementProblem, simulations: int | None = None, seconds: float | None = None) -> Evaluator:
    return Evaluator(problem, group_ops(problem), simulations, seconds)


def test_scores_are_makespans_and_the_best_has_its_history() -> None:
    problem = two_chains()
    judge = evaluator(problem)
    assert judge.score(ONE) == simulate(problem, ONE).makespan_us == 90.0  # 6 x (10 + 5 of overhead)
    assert judge.score_ops(APART) == 45.0
    assert judge.score_batch(np.stack([ONE, APART])).tolist() == [90.0, 45.0]
    result = judge.result()
    assert result.placement.tolist() == APART.tolist()
    assert (result.makespan_us, result.fits, result.simulations) == (45.0, True, 4)
    assert [(count, makespan) for count, _, makespan in result.history] == [(1, 90.0), (2, 45.0)]
    assert 0 <= result.history[0][1] <= result.history[1][1] <= result.seconds


def test_penalty_and_what_fits_comes_first() -> None:
    problem = two_chains(param_bytes=3 * GB)  # with gradients and moments 12 GB each; a device has 16 GB
    judge = evaluator(problem)
    over = (24 * GB - problem.cluster.memory[0]) / problem.cluster.memory[0]
    assert judge.score(ONE) == pytest.approx(90.0 * (1 + MEMORY_PENALTY * over))
    assert not judge.best_fits
    assert not judge.result().fits
    slow_but_fits = np.array([0, 1, 0, 1, 0, 1])
    assert judge.score(slow_but_fits) == simulate(problem, slow_but_fits).makespan_us
    assert judge.result().placement.tolist() == slow_but_fits.tolist()
    assert judge.result().fits


def test_fits_wins_over_a_lower_penalised_makespan() -> None:
    problem = two_chains()
    judge = evaluator(problem)
    judge.absorb(ONE, 50.0, 0.001, 1)
    judge.absorb(APART, 90.0, 0.0, 1)
    judge.absorb(ONE, 40.0, 0.001, 1)
    assert judge.result().placement.tolist() == APART.tolist()


@given(limit=st.integers(0, 6), batches=st.lists(st.integers(1, 4), max_size=6))
@settings(max_examples=40, deadline=None)
def test_budget_is_never_exceeded(limit: int, batches: list[int]) -> None:
    judge = evaluator(two_chains(), simulations=limit)
    finite = 0
    for size in batches:
        finite += int(np.isfinite(judge.score_batch(np.tile(APART, (size, 1)))).sum())
    assert judge.simulations == finite == min(limit, sum(batches))
    assert judge.exhausted == (finite == limit)
    assert judge.score(ONE) == math.inf or finite < limit


def test_without_budget_the_best_single_device_is_the_result() -> None:
    problem = two_chains()
    judge = evaluator(problem, simulations=0)
    assert judge.exhausted
    assert judge.progress == 1.0
    assert judge.score(APART) == math.inf
    result = judge.result()
    assert result.makespan_us == problem.single_device_us
    assert result.simulations == 0
    assert result.history == ()


def test_best_groups_only_takes_placements_that_keep_groups_together() -> None:
    problem = two_chains()
    judge = Evaluator(problem, group_ops(problem, 2))
    assert judge.best_groups[1] == math.inf
    judge.score_ops(np.array([0, 0, 1, 1, 1, 0]))
    assert judge.best_groups[1] == math.inf
    judge.score(np.array([0, 1]))
    assert judge.best_groups[0].tolist() == [0, 1]
    assert judge.best_groups[1] == 45.0


def test_parts_take_over_the_best_placement_that_keeps_them_together() -> None:
    problem = two_chains()
    two, six = group_ops(problem, 2), group_ops(problem)
    judge = Evaluator(problem, two)
    judge.score(np.array([0, 0]))
    judge.score_ops(np.array([0, 0, 1, 1, 1, 0]))
    judge.regroup(two)
    assert judge.best_groups[0].tolist() == [0, 0]
    judge.regroup(six)
    np.testing.assert_array_equal(judge.best_groups[0][six.group], judge.best)
    assert judge.best_groups[1] == judge.best_score
    assert judge.score(APART[np.unique(six.group, return_index=True)[1]]) == judge.best_groups[1] == 45.0
    judge = Evaluator(problem, two)
    judge.regroup(six)
    assert judge.best_groups[1] == math.inf


@pytest.mark.parametrize(
    ("first", "makespan", "log", "history"),
    [
        # it began from something worse
        ((90.0, 0.0), 45.0, [(1, 95.0, 0.0), (10, 60.0, 0.0), (70, 45.0, 0.0)], [(1, 90.0), (11, 60.0), (71, 45.0)]),
        # a search that begins from what doesn't fit logs faster placements before the first one that fits
        ((100.0, 0.0), 95.0, [(5, 83.0, 0.1), (7, 98.0, 0.0), (9, 95.0, 0.0)], [(1, 100.0), (8, 98.0), (10, 95.0)]),
        # 100 with the penalty: faster ones that exceed memory more are no improvements, and slower ones that fit are
        (
            (50.0, 0.1),
            90.0,
            [(1, 45.0, 0.2), (2, 60.0, 0.05), (4, 120.0, 0.0), (6, 40.0, 0.1), (9, 90.0, 0.0)],
            [(1, 50.0), (3, 60.0), (5, 120.0), (10, 90.0)],
        ),
    ],
    ids=["fit", "begins unfit", "by penalty"],
)
def test_absorbed_improvements_become_history(
    first: tuple[float, float], makespan: float, log: list[tuple[int, float, float]], history: list[tuple[int, float]]
) -> None:
    judge = evaluator(two_chains())
    judge.absorb(ONE, *first, 1)
    judge.absorb(APART, makespan, 0.0, 100, log)
    assert [entry[::2] for entry in judge.result().history] == history
    seconds = [second for _, second, _ in judge.result().history]
    assert seconds == sorted(seconds)
    assert judge.simulations == 101


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(evaluator_module, "time", clock)
    return clock


def test_grouping_is_part_of_the_seconds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(problem: PlacementProblem) -> Groups:
        clock.now += 3.0
        return group_ops(problem)

    monkeypatch.setattr(evaluator_module, "group_ops", slowly)
    judge = Evaluator(two_chains(), seconds=5.0)
    assert (judge.seconds, judge.exhausted) == (3.0, False)
    assert Evaluator(two_chains(), seconds=2.0).exhausted
    clock.now = 10.0
    assert Evaluator(two_chains(), group_ops(two_chains()), seconds=5.0, began=6.0).seconds == 4.0


def test_a_batch_ends_when_time_is_up(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 0.01 s a simulation, 0.095 s are enough for nine, of which the last one ends late."""

    def slowly(problem: PlacementProblem, placements: np.ndarray, order: None) -> tuple[np.ndarray, np.ndarray]:
        clock.now += 0.01 * len(placements)
        return np.full(len(placements), 90.0), np.zeros(len(placements))

    monkeypatch.setattr(evaluator_module, "simulate_batch", slowly)
    judge = evaluator(two_chains(), seconds=0.095)
    scores = judge.score_batch(np.tile(APART, (60, 1)))
    assert judge.simulations == np.isfinite(scores).sum() == 10
    assert clock.now == pytest.approx(0.1)


def test_simulations_expected_are_those_at_the_pace_so_far(clock: Clock) -> None:
    judge = evaluator(two_chains(), simulations=500, seconds=10.0)
    assert judge.expected == 500
    assert judge.next_chunk(100) == 1
    judge.took(1, 0.001)
    assert [judge.next_chunk(100), judge.next_chunk(1)] == [2, 1]
    judge.took(50, 0.05)
    assert judge.next_chunk(100) == 20  # in 0.02 s
    clock.now = 9.995
    assert judge.next_chunk(100) == 5 == pytest.approx(judge.expected)
    clock.now = 10.0
    assert judge.next_chunk(100) == judge.expected == 0
    assert evaluator(two_chains(), simulations=70).next_chunk(100) == 70


def test_limits_for_a_while_and_shares_of_what_is_left(clock: Clock) -> None:
    judge = evaluator(two_chains(), simulations=11)
    with judge.limited(2, 60.0):
        assert np.isfinite(judge.score_batch(np.tile(APART, (9, 1)))).sum() == 2
        assert judge.seconds_limit == 60.0
    assert (judge.remaining, judge.seconds_limit) == (9, None)
    with judge.limited_to(0.25):
        assert (judge.remaining, judge.seconds_limit) == (3, None)
    judge = evaluator(two_chains(), seconds=8.0)
    clock.now += 4.0
    with judge.limited_to(0.25):
        assert judge.seconds_limit == 5.0
        assert judge.limit is None, "the policy makes a pass only if simulations are limited"
    assert judge.seconds_limit == 8.0


def test_bad_placements_and_budgets_are_refused() -> None:
    problem = two_chains()
    with pytest.raises(PlacementError):
        evaluator(problem).score_ops(np.zeros(3, np.int64))
    with pytest.raises(PlacementError):
        evaluator(problem).score(np.full(6, 2))
    with pytest.raises(ValueError, match=r"there are 6 groups, but the placement has shape \(2, 5\)"):
        evaluator(problem).score_batch(np.zeros((2, 5), np.int64))
    with pytest.raises(ValueError, match="simulations"):
        evaluator(problem, simulations=-1)
    with pytest.raises(ValueError, match="seconds"):
        evaluator(problem, seconds=math.nan)


def test_what_is_found_on_some_devices_is_taken_over() -> None:
    problem = PlacementProblem(two_chains().graph, toy_cluster(4))
    judge = Evaluator(problem, None, 10)
    start = np.full(judge.groups.num_groups, 2)
    judge.score(start)
    with judge.limited_to(0.5), judge.confined(on_devices(problem, (1, 2)), (1, 2)) as inner:
        assert inner.best.tolist() == [1] * problem.num_ops
        assert (inner.simulations, inner.limit) == (1, 6)
        while not inner.exhausted:
            inner.score(np.arange(inner.groups.num_groups) % 2)
    assert judge.simulations == 6
    assert set(judge.best.tolist()) <= {1, 2}
    result = judge.result()
    assert simulate(problem, result.placement).makespan_us == result.makespan_us
    assert [count for count, _, _ in result.history] == sorted(count for count, _, _ in result.history)
    assert expand(judge.groups, judge.best_groups[0]).tolist() == judge.best.tolist()
