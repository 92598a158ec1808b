import numpy as np
import pytest
import torch

from placeto.environment.instance import make_instance
from placeto.environment.walk import Walk
from placeto.errors import PlacerError
from placeto.policies.placeto_paper import Networks, PlacetoPaperConfig, PlacetoPaperPolicy, Surroundings
from tests.cases import toy_problem
from tests.toys import fork_of_chains


@pytest.fixture(scope="module")
def walk():
    return Walk(make_instance(toy_problem(1, 30, 3)))


def policy(seed=0, **settings):
    torch.manual_seed(seed)
    return PlacetoPaperPolicy(PlacetoPaperConfig(**settings))


def states(walk, count=5):
    """Features and current groups of different states."""
    random, state, found = np.random.default_rng(0), walk.begin(1, walk.random_start()), []
    for _ in range(count):
        found.append((torch.from_numpy(state.features[0]), state.current))
        state = state.move(random.integers(3, size=1))
    features, current = zip(*found, strict=True)
    return torch.stack(features), torch.tensor(current)


def test_networks_stand_side_by_side():
    networks, x = Networks(2, [3, 4, 2], last_activation=True), torch.randn(2, 3, 6)
    expected = []
    for k in range(2):
        hidden = torch.relu(networks.weight0[k] @ x[k] + networks.bias0[k])
        expected.append(torch.relu(networks.weight1[k] @ hidden + networks.bias1[k]))
    torch.testing.assert_close(networks(x), torch.stack(expected))
    plain = Networks(2, [3, 4, 2], last_activation=False)
    plain.load_state_dict(networks.state_dict())
    assert (plain(x) < 0).any()


def test_surroundings_by_hand():
    """Two chains of two: each first op comes before its second, the other chain is beside them."""
    walk = Walk(make_instance(fork_of_chains(2, 2)))
    around = Surroundings.of(walk)
    firsts, seconds = walk.instance.pairs
    assert around.share[0, 0, seconds, 0].tolist() == around.share[1, 0, firsts, 0].tolist() == [1.0, 1.0]
    assert around.share[0, 0, firsts, 0].tolist() == [0.0, 0.0]
    before, after, beside = around.related[firsts[0]]
    assert not before.any()
    assert after.nonzero().flatten().tolist() == [seconds[0]]
    assert sorted(beside.nonzero().flatten().tolist()) == sorted([firsts[1], seconds[1]])
    torch.testing.assert_close(around.related.sum(-1).unique(), torch.tensor([0.0, 1.0]))


def test_states_of_a_batch_do_not_influence_one_another(walk):
    paper, around, (features, current) = policy(), Surroundings.of(walk), states(walk)
    logits = paper(features, current, around)
    assert logits.shape == (5, 3)
    assert logits.std() > 0
    torch.testing.assert_close(logits[1:2], paper(features[1:2], current[1:2], around), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_messages_reach_as_far_as_their_rounds(rounds):
    """Without what is pooled, the first op of a chain knows of the ops that its rounds reach.

    Of several networks: a ReLU may let nothing through.
    """
    walk, touched = Walk(make_instance(fork_of_chains(1, 6))), np.zeros(6, bool)
    around = Surroundings.of(walk)
    alone = Surroundings(around.arcs, around.share, torch.zeros_like(around.related))
    for seed in range(10):
        features = torch.from_numpy(walk.begin(1, walk.random_start()).features).requires_grad_()
        logits = policy(seed, rounds=rounds, devices=2)(features, torch.from_numpy(walk.order[:1]), alone)
        (gradient,) = torch.autograd.grad(logits.square().sum(), features)
        touched |= gradient[0].any(1).numpy()[walk.order]
    assert touched.tolist() == [place <= rounds for place in range(6)]


def test_more_devices_than_the_head_has_are_refused(walk):
    features, current = states(walk)
    with pytest.raises(PlacerError, match=r"made for 2 devices at most, the cluster has 3: .*policy\.devices"):
        policy(devices=2)(features, current, Surroundings.of(walk))
