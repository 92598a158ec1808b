from dataclasses import asdict, dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from placeto.environment.columns import PAIR
from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import make_instance
from placeto.environment.observation import Observation
from placeto.heuristics import HEURISTICS
from placeto.heuristics.local_search.multilevel import CYCLES
from placeto.heuristics.local_search.starts import begin, best_cheap
from placeto.heuristics.naive import try_single
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.guided_search import GuidedPlacer, cheap_starts, guided_placer
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.policies.sweeps import GuidedConfig
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.memory import MEMORY_PENALTY
from placeto.simulator.schedule import simulate
from tests.cases import toy_problem
from tests.toys import fork_of_chains, random_graph, toy_cluster


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 30), budget=st.integers(0, 60), devices=st.integers(1, 3))
def test_budget_is_kept_and_the_result_is_what_the_simulator_says(placer, seed, budget, devices):
    problem = toy_problem(seed, 20, devices)
    result = placer(problem, simulations=budget, seed=seed)
    assert result.simulations <= budget
    assert result.makespan_us == result.schedule().makespan_us
    history = [makespan for _, _, makespan in result.history]
    assert history == sorted(history, reverse=True)


CONSTRUCTIVE = ("single", "fastest", "roundrobin", "expert", "metis", "heft", "etf", "m-topo", "m-etf", "m-sct")


def quality(result):
    """Smaller is better: what fits, then the penalised makespan."""
    overflow = result.schedule().overflow
    return overflow > 0, result.makespan_us * (1.0 + MEMORY_PENALTY * overflow)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 1000), speeds=st.sampled_from([(1.0, 1.0, 1.0), (1.0, 1.5)]), memory=st.sampled_from([9, 4, 2])
)
def test_never_worse_than_a_constructive_heuristic(placer, seed, speeds, memory):
    """Even with random parameters, and where many placements don't fit."""
    graph = random_graph(seed, 40)
    need = int(graph.output_bytes.sum())
    problem = PlacementProblem(graph, toy_cluster(len(speeds), speeds, max(1, need * memory // 18)))
    cheap = {name: quality(HEURISTICS[name](problem, seed=0)) for name in CONSTRUCTIVE}
    ends = [quality(placer(problem, simulations=budget)) for budget in (0, 200, 400)]  # 100 are too few for all of them
    for name, end in cheap.items():
        assert max(ends) <= end, name


def test_a_pass_takes_a_simulation_a_group_at_most(placer):
    problem = toy_problem(3, 300, 3)
    result, evaluator = placer.one_pass(problem), Evaluator(problem)
    begin(evaluator)
    assert evaluator.simulations < result.simulations <= evaluator.simulations + evaluator.groups.num_groups
    assert result.makespan_us == result.schedule().makespan_us


@pytest.mark.parametrize("devices", [1, 3])
def test_without_simulations_the_pass_is_the_answer(placer, devices):
    problem = toy_problem(4, 30, devices)
    result = placer(problem, simulations=0)
    assert result.simulations == 0
    assert result.makespan_us == result.schedule().makespan_us
    np.testing.assert_array_equal(result.placement, placer.one_pass(problem).placement)


def test_same_seed_same_placement(placer):
    problem = toy_problem(2, 30, 3)
    first, second = (placer(problem, simulations=150, seed=7) for _ in range(2))
    np.testing.assert_array_equal(first.placement, second.placement)
    assert first.simulations == second.simulations


def test_search_finds_the_optimum_of_a_fork(placer):
    problem = fork_of_chains(4, 2)
    assert placer(problem, simulations=300).makespan_us == pytest.approx(40.0)


def test_starts_are_sorted_and_scored_as_the_simulator_does():
    problem = toy_problem(5, 40, 3)
    instance = make_instance(problem)
    starts = cheap_starts(instance)
    assert (np.diff(starts.score) >= 0).all()
    for row, score in zip(starts.placement, starts.score, strict=True):
        schedule = simulate(problem, row[instance.groups.group])
        assert score == pytest.approx(schedule.makespan_us / problem.single_device_us)


def test_a_policy_whose_numbers_overflow_ends_too():
    """It has no likely move then: what the heuristics and annealing find is the result."""
    policy = PlacetoPolicy(PlacetoConfig())
    for parameter in policy.parameters():
        parameter.data[::2] *= 1e25
    problem = toy_problem(3, 20, 2)
    instance = make_instance(problem)
    for budget in ({}, {"simulations": 0}, {"simulations": 200}):
        result = GuidedPlacer(CompiledPolicy.of(policy), EnvConfig())(problem, **budget)
        assert result.makespan_us == result.schedule().makespan_us
    evaluator = Evaluator(problem, instance.groups)
    best_cheap(evaluator)
    assert result.makespan_us <= evaluator.best_score


def test_settings_of_the_search_travel_in_the_checkpoint():
    policy, own = PlacetoPolicy(PlacetoConfig()), GuidedConfig(levels=2, tries=3)
    config = {"env": asdict(EnvConfig()), "search": asdict(own)}
    config["policy"] = asdict(policy.config)
    checkpoint = {"placer": "placeto", "best_parameters": policy.state_dict(), "config": config}
    assert guided_placer(checkpoint).search == own
    older = checkpoint | {"config": {"env": asdict(EnvConfig()), "policy": config["policy"]}}
    assert guided_placer(older).search == GuidedConfig()
    config["search"] |= {"scales": (1.0, 0.5), "together": 4}  # which are gone
    assert guided_placer(checkpoint).search == own


class Gain(nn.Module):
    """A policy of another package: it wants the moves after which critical ops finish earliest, or latest."""

    def __init__(self, sign):
        super().__init__()
        self.sign = sign

    def forward(self, data):
        logits = self.sign * data.pair[..., PAIR.gain]
        return logits, torch.zeros_like(logits)


def test_a_policy_of_another_package_guides_the_same_search():
    problem = toy_problem(1, 60, 4)
    checkpoint = {"placer": "gain", "config": {"env": asdict(EnvConfig())}}
    earliest, latest = (guided_placer(checkpoint, Gain(sign)) for sign in (1.0, -1.0))
    for placer in (earliest, latest):
        placer.start = lambda evaluator, seed: evaluator.score(np.zeros(evaluator.groups.num_groups, np.int64))
    assert earliest.one_pass(problem).makespan_us < 0.9 * latest.one_pass(problem).makespan_us
    first, again = (earliest(problem, simulations=90, seed=4) for _ in range(2))
    assert (first.simulations, first.placer) == (90, "gain")
    assert first.makespan_us == simulate(problem, first.placement).makespan_us
    np.testing.assert_array_equal(first.placement, again.placement)


@pytest.mark.parametrize("more", [400, 10**4])
def test_a_sweep_leaves_annealing_half_of_the_simulations_of_each_step(placer, monkeypatch, more):
    problem, left = toy_problem(3, 30, 3), []
    evaluator = Evaluator(problem)
    begin(evaluator)
    monkeypatch.setattr(
        "placeto.heuristics.local_search.multilevel.annealing", lambda of, _: left.append(of.limit - of.simulations)
    )
    placer(problem, simulations=evaluator.simulations + more)
    assert left[0] >= more // (16 * CYCLES) > 0
    assert len(left) == 2 * CYCLES


@dataclass
class Numbered:
    """Scores moves by their numbers; moves that can't be chosen are `otherwise`."""

    otherwise: float

    def __call__(self, seen: Observation, legal: np.ndarray) -> np.ndarray:
        return np.where(legal, np.arange(legal.size).reshape(legal.shape) % 7.0, self.otherwise)


def test_moves_that_cant_be_chosen_may_have_infinite_logits() -> None:
    """As policies of other packages give them."""
    problem = toy_problem(1, 20, 3)
    placers = [GuidedPlacer(Numbered(otherwise), EnvConfig(), start=try_single) for otherwise in (0.0, -np.inf)]
    ends = [placer.one_pass(problem).placement.tolist() for placer in placers]
    assert ends[0] == ends[1]
    assert len(set(ends[0])) > 1, "no move was tried"
