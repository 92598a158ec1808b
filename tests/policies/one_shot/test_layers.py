import torch
from torch import nn

from placeto.policies.one_shot.inputs import TYPE_BUCKETS, make_input
from placeto.policies.one_shot.unit_layers import TYPE_WIDTH, DeviceHead, UnitEncoder, gumbel_noise, type_mixture
from tests.policies.one_shot.test_inputs import diamond


def test_types_of_a_unit_are_averaged() -> None:
    graph, types = make_input(diamond(), "ops"), nn.Embedding(TYPE_BUCKETS, TYPE_WIDTH)
    mixed = type_mixture(types, graph)
    relu_and_view = types(graph.op_type[[1, 3]]).mean(0)
    torch.testing.assert_close(mixed[1], relu_and_view)
    torch.testing.assert_close(mixed[0], types(graph.op_type[0]))


def test_an_untrained_policy_is_close_to_uniform_yet_not_blind_to_slow_devices() -> None:
    graph = make_input(diamond(), "ops")
    encoder, head = UnitEncoder(16), DeviceHead(16, 4)
    logits = head(encoder(graph), head.embeddings(graph), graph.pair[..., None])
    assert logits.shape == (4, 2)
    torch.testing.assert_close(logits.softmax(-1), torch.full((4, 2), 0.5), atol=0.2, rtol=0)
    same_times = head(encoder(graph), head.embeddings(graph), torch.zeros(4, 2, 1))
    assert not torch.equal(logits, same_times)


def test_noise_makes_the_largest_a_draw() -> None:
    logits = torch.log(torch.tensor([0.1, 0.2, 0.7]))
    noise = gumbel_noise((20_000, 3), torch.Generator().manual_seed(0), logits)
    drawn = torch.bincount((logits + noise).argmax(-1)) / 20_000
    torch.testing.assert_close(drawn, logits.exp(), atol=0.01, rtol=0)
    assert gumbel_noise((2, 3), None, logits).abs().sum() == 0


def test_bounded_logits_stay_within_their_bound_and_small_ones_are_divided() -> None:
    graph = make_input(diamond(), "ops")
    plain, bounded = DeviceHead(16, 4), DeviceHead(16, 4, bound=5.0, temperature=10.0)
    bounded.load_state_dict(plain.state_dict())
    x, devices, pair = torch.randn(4, 16), plain.embeddings(graph), graph.pair[..., None]
    small, large = (bounded(size * x, devices, pair) for size in (1e-3, 1e4))
    torch.testing.assert_close(small, plain(1e-3 * x, devices, pair) / 2.0, rtol=1e-3, atol=1e-4)
    assert 4.9 < large.abs().max() <= 5.0
