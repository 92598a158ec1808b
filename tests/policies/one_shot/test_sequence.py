import pytest
import torch

from placeto.policies.one_shot import sequence
from placeto.policies.one_shot.inputs import make_input
from placeto.policies.one_shot.sequence import Elements, SequencePlacer
from placeto.policies.one_shot.unit_layers import gumbel_noise, log_prob_and_entropy
from tests.toys import fork_of_chains, two_cliques


def placer_for(feedback: bool, normalised: bool = True) -> SequencePlacer:
    torch.manual_seed(0)
    return SequencePlacer(8, 4, feedback, normalised=normalised)


def elements(placer, problem=None, count: int = 1) -> Elements:
    graph = make_input(problem or two_cliques(), "ops")
    return Elements(
        x=torch.randn(count, graph.num_units, 8),
        devices=placer.head.embeddings(graph).detach(),
        time=graph.pair.expand(count, -1, -1),
        work=graph.num_devices * graph.work.expand(count, -1),
        producers=graph.producers.expand(count, -1, -1),
        shares=graph.shares.expand(count, -1, -1),
    )


def noise(part: Elements, count: int):
    shape = (count, part.x.shape[1], len(part.devices))
    return gumbel_noise(shape, torch.Generator().manual_seed(0), part.x)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("feedback", [False, True])
def test_given_sequences_have_the_log_probability_they_were_drawn_with(feedback, normalised) -> None:
    """The loop over elements and the pass without a loop are the same network; every element sees its producers."""
    placer = placer_for(feedback, normalised)
    torch.nn.init.normal_(placer.head.pair.weight)
    part = elements(placer)
    ((action, log_prob),) = placer.sample([part], [noise(part, 6)])
    again, entropy = placer.score(part, action)
    torch.testing.assert_close(again, log_prob, atol=1e-5, rtol=1e-5)
    assert (entropy > 0).all()
    assert set(action.flatten().tolist()) == {0, 1}


def test_sequences_of_their_own_for_each_sample() -> None:
    placer = placer_for(True)
    part = elements(placer, count=3)
    ((action, log_prob),) = placer.sample([part], [noise(part, 3)])
    for k in range(3):
        one = Elements(part.x[k : k + 1], part.devices, part.time[:1], part.work[:1], part.producers[:1],
                       part.shares[:1])  # fmt: skip
        alone, _ = placer.score(one, action[k : k + 1])
        torch.testing.assert_close(alone[0], log_prob[k], atol=1e-5, rtol=1e-5)


def test_graphs_of_any_length_are_worked_on_side_by_side() -> None:
    """Each gets what it gets alone: padding is not seen, nor are other graphs."""
    placer = placer_for(True)
    parts = [elements(placer, problem) for problem in (two_cliques(), fork_of_chains(3, 2), fork_of_chains(4, 1))]
    draws = [noise(part, count) for part, count in zip(parts, (4, 4, 4), strict=True)]
    together = placer.sample(parts, draws)
    for part, draw, (action, log_prob) in zip(parts, draws, together, strict=True):
        ((one_action, one_log_prob),) = placer.sample([part], [draw])
        assert torch.equal(action, one_action)
        torch.testing.assert_close(log_prob, one_log_prob, atol=1e-6, rtol=1e-5)


def test_a_decision_depends_on_the_one_before_it_and_with_feedback_on_those_of_its_producers() -> None:
    for feedback in (False, True):
        placer = placer_for(feedback)
        part = elements(placer, fork_of_chains(2, 3))  # producers of 4 and 5 are 3 and 4
        torch.nn.init.normal_(placer.head.query.weight)
        other = torch.zeros(1, 6, dtype=torch.int64)
        one, _ = placer.score(part, other)
        other[0, 3] = 1
        two, _ = placer.score(part, other)
        torch.testing.assert_close(one[0, :3], two[0, :3])
        assert (one[0, 4] - two[0, 4]).detach().abs() > 1e-6
    pairs = placer._pairs(part, other[None])[0, 0]  # (U, D, P)
    assert pairs[:, 1, 1].tolist() == [0, 0, 0, 0, 1, 0]
    torch.testing.assert_close(pairs[:, 0, 2] * 3, torch.tensor([0, 0.5, 1.0, 1.5, 1.0, 1.5]))


def test_attention_in_parts_gives_the_same(monkeypatch) -> None:
    placer = placer_for(True)
    part = elements(placer)
    action = torch.randint(2, (5, part.x.shape[1]))
    whole = placer.score(part, action)
    whole[0].sum().backward()
    gradient = placer.key.weight.grad.clone()
    placer.zero_grad()
    monkeypatch.setattr(sequence, "_MOST", 5 * part.x.shape[1] * 2)
    parts = placer.score(part, action)
    parts[0].sum().backward()
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(placer.key.weight.grad, gradient)


def test_log_probabilities_and_entropies_in_closed_form() -> None:
    logits = torch.log(torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]))
    log_prob, entropy = log_prob_and_entropy(logits, torch.tensor([[1, 0]]))
    torch.testing.assert_close(log_prob.exp(), torch.tensor([[0.75, 0.5]]))
    torch.testing.assert_close(entropy, torch.tensor([[0.562335, 0.693147]]))
