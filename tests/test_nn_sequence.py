import pytest
import torch

from placeto import nn_sequence
from placeto.nn_sequence import SequencePlacer
from placeto.nn_units import log_prob_and_entropy
from placeto.op_features import make_input
from tests.toys import two_cliques


@pytest.fixture
def setting():
    torch.manual_seed(0)
    placer = SequencePlacer(8, 4)
    graph = make_input(two_cliques(), "ops")
    return placer, torch.randn(1, graph.num_units, 8), placer.head.embeddings(graph).detach(), graph.pair[None]


def test_given_sequences_have_the_log_probability_they_were_drawn_with(setting) -> None:
    """The loop over elements and the pass without a loop are the same network."""
    placer, x, devices, pair = setting
    action, log_prob = placer.sample(x, devices, pair, 6, torch.Generator().manual_seed(0))
    again, entropy = placer.score(x, devices, pair, action)
    torch.testing.assert_close(again, log_prob, atol=1e-5, rtol=1e-5)
    assert (entropy > 0).all()
    assert set(action.flatten().tolist()) == {0, 1}


def test_sequences_of_their_own_for_each_sample(setting) -> None:
    placer, _, devices, pair = setting
    x = torch.randn(3, pair.shape[1], 8)
    pairs = pair.expand(3, -1, -1)
    action, log_prob = placer.sample(x, devices, pairs, 3, torch.Generator().manual_seed(0))
    for k in range(3):
        alone, _ = placer.score(x[k : k + 1], devices, pair, action[k : k + 1])
        torch.testing.assert_close(alone[0], log_prob[k], atol=1e-5, rtol=1e-5)


def test_a_decision_depends_on_the_one_before_it(setting) -> None:
    placer, x, devices, pair = setting
    torch.nn.init.normal_(placer.head.query.weight)
    zeros = torch.zeros(1, x.shape[1], dtype=torch.int64)
    other = zeros.clone()
    other[0, 3] = 1
    one, _ = placer.score(x, devices, pair, zeros)
    two, _ = placer.score(x, devices, pair, other)
    torch.testing.assert_close(one[0, :3], two[0, :3])
    assert (one[0, 4] - two[0, 4]).detach().abs() > 1e-6


def test_attention_in_parts_gives_the_same(setting, monkeypatch) -> None:
    placer, x, devices, pair = setting
    action = torch.randint(2, (5, x.shape[1]))
    whole = placer.score(x, devices, pair, action)
    whole[0].sum().backward()
    gradient = placer.key.weight.grad.clone()
    placer.zero_grad()
    monkeypatch.setattr(nn_sequence, "_MOST", 5 * x.shape[1] * nn_sequence.ATTENTION_WIDTH * 2)
    parts = placer.score(x, devices, pair, action)
    parts[0].sum().backward()
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(placer.key.weight.grad, gradient)


def test_log_probabilities_and_entropies_in_closed_form() -> None:
    logits = torch.log(torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]))
    log_prob, entropy = log_prob_and_entropy(logits, torch.tensor([[1, 0]]))
    torch.testing.assert_close(log_prob.exp(), torch.tensor([[0.75, 0.5]]))
    torch.testing.assert_close(entropy, torch.tensor([[0.562335, 0.693147]]))
