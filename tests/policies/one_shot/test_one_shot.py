"""What every one-shot policy promises, and that each learns."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from placeto.errors import PlacerError
from placeto.placers import load_placer
from placeto.policies import POLICIES
from placeto.policies.one_shot.constructive import ConstructiveConfig
from placeto.policies.one_shot.gdp import GdpConfig, GdpPolicy
from placeto.policies.one_shot.grouper import GrouperConfig, GrouperPolicy
from placeto.policies.one_shot.inputs import make_input
from placeto.policies.one_shot.mlp import MlpConfig
from placeto.policies.one_shot.sampling import SamplingPlacer
from placeto.policies.one_shot.seq2seq import Seq2SeqConfig
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from placeto.training.config import OneShotLearningConfig, OneShotTrainConfig
from placeto.training.learners.learner import Run
from placeto.training.learners.one_shot import OneShotLearner
from tests.cases import chain, devices, toy_problem
from tests.toys import fork_of_chains, two_cliques, two_kinds

ONE_SHOT = {name: entry for name, entry in POLICIES.items() if entry.kind == "one-shot"}
SMALL = {
    "seq2seq": Seq2SeqConfig(units="ops", hidden=32),
    "grouper": GrouperConfig(units="ops", hidden=32, groups=8),
    "gdp": GdpConfig(units="ops", hidden=32),
    "constructive": ConstructiveConfig(units="ops", hidden=32),
    "mlp": MlpConfig(units="ops", hidden=32),
}


def problem(devices: int = 3, seed: int = 0):
    return toy_problem(seed, 40, devices, speeds=(1.0, 0.5, 1.0, 2.0)[:devices])


def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=ONE_SHOT)
def policy(request):
    entry = ONE_SHOT[request.param]
    return entry.policy(entry.config())


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_samples_are_placements_with_the_log_probability_they_are_scored_with(policy, devices) -> None:
    graph = make_input(problem(devices), policy.units)
    sample = policy.sample(graph, 5, generator())
    assert sample.placement.shape == (5, graph.num_units)
    assert set(sample.placement.flatten().tolist()) == set(range(devices))
    log_prob, entropy = policy.score(graph, sample.action)
    torch.testing.assert_close(log_prob, sample.log_prob, atol=1e-5, rtol=1e-5)
    assert log_prob.shape == sample.action.shape
    assert entropy.shape == (5,)
    assert (entropy > 0).all()
    assert not sample.log_prob.requires_grad


def test_ranks_that_decide_by_their_rows_of_the_noise_make_all_samples_together(policy) -> None:
    graph = make_input(problem(), policy.units)
    whole, noise = policy.sample(graph, 5, generator()), policy.noise(graph, 5, generator())
    for rows in (slice(0, 2), slice(2, 5)):
        (part,) = policy.decide([graph], [tuple(draw[rows] for draw in noise)])
        assert torch.equal(part.action, whole.action[rows])


def test_same_generator_same_placements_and_none_is_the_most_likely(policy) -> None:
    graph = make_input(problem(), policy.units)
    one, other = policy.sample(graph, 4, generator()), policy.sample(graph, 4, generator())
    assert torch.equal(one.placement, other.placement)
    assert len(torch.unique(one.placement, dim=0)) > 1
    likely = policy.sample(graph, 3, None)
    assert len(torch.unique(likely.placement, dim=0)) == 1


def test_every_parameter_learns(policy) -> None:
    """Gradients reach all parameters, but for what only a few graphs need."""
    graph = make_input(problem(), policy.units)
    log_prob, entropy = policy.score(graph, policy.sample(graph, 4, generator()).action)
    (log_prob.sum() + entropy.sum()).backward()
    assert [name for name, value in policy.named_parameters() if value.grad is None] == []


def test_more_devices_than_it_knows_are_refused(policy) -> None:
    if policy.max_devices == math.inf:
        return
    with pytest.raises(PlacerError, match="made for 8 devices at most, the cluster has 9"):
        policy.sample(make_input(fork_of_chains(3, 1, 9), policy.units), 1, None)


def test_groups_share_a_device() -> None:
    policy = GrouperPolicy(GrouperConfig(groups=4))
    graph = make_input(problem(), "ops")
    sample = policy.sample(graph, 6, generator())
    group, device = sample.action[:, : graph.num_units], sample.action[:, graph.num_units :]
    assert device.shape == (6, 4)
    assert torch.equal(sample.placement, device.gather(1, group))
    empty = torch.stack([~torch.isin(torch.arange(4), row) for row in group])
    assert (sample.log_prob[:, graph.num_units :][empty] == 0).all()


def test_gdp_has_no_attention_over_more_than_two_segments() -> None:
    """A unit feels others through two rounds along arcs and one segment back; far ones don't matter."""
    policy = GdpPolicy(GdpConfig(rounds=0, layers=1, segment=4, superposition=False, units="ops"))
    graph = make_input(problem(), "ops")
    before = policy(graph)
    graph.features.requires_grad_(True)
    (gradient,) = torch.autograd.grad(policy(graph)[20:24].sum(), graph.features)
    graph.features.requires_grad_(False)
    assert (gradient.abs().sum(1) > 0).nonzero().flatten().tolist() == list(range(20, 24))  # the cache is detached
    graph.features[16] += 1.0
    graph.features[15] += 1.0
    changed = (policy(graph) - before).abs().amax(1) > 1e-7
    graph.features[[15, 16]] -= 1.0
    assert changed[16:24].all()
    assert not changed[24:].any()


def test_gdp_places_tens_of_thousands_of_ops_in_one_pass_with_little_memory(monkeypatch) -> None:
    """57,000 ops, as many as 8-layer GNMT has: attention holds 32 segments of queries and 64 of keys."""
    real, largest = torch.nn.functional.scaled_dot_product_attention, [0]

    def watched(query, key, value, attn_mask):
        largest[0] = max(largest[0], query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2])
        return real(query, key, value, attn_mask=attn_mask)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    one = make_input(problem(seed=1), "ops")
    copies, units = 1425, one.num_units
    arcs = torch.cat([one.edges + units * c for c in range(copies)], 1)
    large = replace(
        one,
        unit=torch.arange(units * copies),
        op_type=one.op_type.repeat(copies),
        features=one.features.repeat(copies, 1),
        neighbours=one.neighbours.repeat(copies, 1),
        edges=arcs,
        producers=one.producers.repeat(copies, 1),
        shares=one.shares.repeat(copies, 1),
        work=one.work.repeat(copies) / copies,
        pair=one.pair.repeat(copies, 1),
    )
    torch.manual_seed(0)
    sample = GdpPolicy(GdpConfig(hidden=16, heads=2)).sample(large, 1, None)
    assert sample.placement.shape == (1, 57_000)
    assert largest[0] == 2 * 32 * 128 * 256


TOYS = {"cliques": (two_cliques(), 71.0), "kinds": (two_kinds(5, 4), 50.0)}


@pytest.mark.parametrize(
    ("placer", "name"),
    [("seq2seq", "cliques"), ("grouper", "cliques"), ("gdp", "kinds"), ("constructive", "cliques"), ("mlp", "kinds")],
)
def test_learns_the_optimum_of_a_toy_op_by_op(placer, name) -> None:
    """Its most likely placement is optimal within 7,680 placements; each op is its own decision.

    On two cliques one random placement of 2,048 is better than a single device, and nothing leads there step by step:
    hence a strong entropy bonus, and learning from the best samples alone. GDP and the control decide about each op by
    itself: they can't tell equal ops or equal devices apart.
    """
    toy, optimum = TOYS[name]
    lr, epochs = {"seq2seq": (1e-3, 4), "grouper": (1e-2, 4)}.get(placer, (3e-3, 2))
    recipe = OneShotLearningConfig(
        lr=lr, graphs=1, samples=128, baseline="quantile", quantile=0.95, entropy=0.1, epochs=epochs
    )
    config = OneShotTrainConfig("", placer=placer, policy=SMALL[placer], learning=recipe)
    learner = OneShotLearner(Run(config, {"toy": toy}, {"toy": toy}))
    state = learner.initial_state()
    single = toy.single_device_us
    while state.simulations < 60 * 128:
        if max(learner.validate(state).end[0], state.elite_score[0]) * single < optimum + 1e-3:
            break
        learner.iterate(state, state.simulations / (96 * 128))
    result = SamplingPlacer(state.policy)(toy)
    assert result.makespan_us == pytest.approx(optimum)
    assert result.simulations == 1
    assert simulate(toy, state.elite[0]).makespan_us == pytest.approx(optimum)


def test_placer_keeps_its_budget_and_beats_no_heuristic_less(policy) -> None:
    placer, toy = SamplingPlacer(policy), problem()
    alone = placer(toy)
    assert (alone.simulations, alone.makespan_us) == (1, simulate(toy, alone.placement).makespan_us)
    assert np.array_equal(placer(toy, simulations=0).placement, alone.placement)
    for budget in (1, 8, 100):
        result = placer(toy, simulations=budget, seed=1)
        assert result.simulations <= budget
        assert result.makespan_us == simulate(toy, result.placement).makespan_us
    heuristic = load_placer("etf")(toy).makespan_us
    assert result.makespan_us <= heuristic
    assert np.array_equal(result.placement, placer(toy, simulations=100, seed=1).placement)
    assert placer(toy, seconds=0.05).seconds < 2.0


def test_what_does_not_fit_is_repaired(policy, monkeypatch) -> None:
    small = PlacementProblem(chain(*[100] * 10, output=5), devices(300, 900))
    placer = SamplingPlacer(policy)
    monkeypatch.setattr(placer, "_placements", lambda *_: np.zeros((1, small.num_ops), np.int64))
    result = placer(small)
    assert result.fits
    assert result.simulations <= 1 + 2 * 2 + 8
    assert [count for count, _, _ in result.history] == [1, result.simulations], "what fits counts as better"
    assert result.makespan_us == simulate(small, result.placement).makespan_us
