import torch

from placeto.policies.one_shot import segments
from placeto.policies.one_shot.segments import SegmentLayer, SuperposedLinear


def layer(segment: int = 4) -> SegmentLayer:
    torch.manual_seed(0)
    return SegmentLayer(8, 2, segment, 8)


def one_by_one(layer: SegmentLayer, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
    """Transformer-XL as it is usually written: segment after segment, with a cache of the one before."""
    outputs, cache = [], torch.zeros(0, x.shape[1])
    for piece in x.split(layer.segment):
        y = layer.norm(piece)
        read = torch.cat([cache, y])
        query = layer.query(y, condition).view(len(y), layer.heads, -1).transpose(0, 1)
        key, value = layer.key_value(read, condition).chunk(2, -1)
        key, value = (t.view(len(read), layer.heads, -1).transpose(0, 1) for t in (key, value))
        weights = (query @ key.transpose(1, 2) / query.shape[-1] ** 0.5).softmax(-1)
        z = piece + layer.out((weights @ value).transpose(0, 1).flatten(1), condition)
        outputs.append(z + layer.narrow(torch.relu(layer.widen(layer.feed_norm(z), condition)), condition))
        cache = y.detach()
    return torch.cat(outputs)


def test_segments_side_by_side_are_segments_one_by_one(monkeypatch) -> None:
    monkeypatch.setattr(segments, "SEGMENTS_AT_ONCE", 2)
    x, condition = torch.randn(18, 8, requires_grad=True), torch.randn(8)
    for length in (1, 3, 4, 5, 18):
        one, other = layer()(x[:length], condition), one_by_one(layer(), x[:length], condition)
        torch.testing.assert_close(one, other)
        weight = torch.randn_like(one)
        gradients = [torch.autograd.grad((out * weight).sum(), x, retain_graph=True)[0] for out in (one, other)]
        torch.testing.assert_close(*gradients)


def test_an_element_sees_its_segment_and_the_one_before() -> None:
    x, condition = torch.randn(12, 8), torch.zeros(8)
    before = layer()(x, condition)
    changed = x.clone()
    changed[5, 0] += 1.0  # in the second of three segments
    moved = (layer()(changed, condition) - before).abs().amax(1) > 1e-7
    assert moved.tolist() == 4 * [False] + 8 * [True]


def test_no_gradient_flows_into_the_cache() -> None:
    x = torch.randn(12, 8, requires_grad=True)
    layer()(x, torch.zeros(8))[8:].sum().backward()
    assert (x.grad[:8] == 0).all()
    assert (x.grad[8:] != 0).any()


def test_the_order_within_a_segment_does_not_matter() -> None:
    x, condition, order = torch.randn(4, 8), torch.randn(8), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(layer()(x, condition)[order], layer()(x[order], condition))


def test_gates_begin_open_and_choose_inputs() -> None:
    dense = SuperposedLinear(3, 2, 5)
    x, condition = torch.randn(4, 3), torch.randn(5)
    torch.testing.assert_close(dense(x, condition), dense.linear(x))
    with torch.no_grad():
        dense.gate.bias.copy_(torch.tensor([-100.0, 0.0, 100.0]))  # closed, as it is, doubled
    torch.testing.assert_close(dense(x, condition), dense.linear(x * torch.tensor([0.0, 1.0, 2.0])))
    plain = SuperposedLinear(3, 2, 0)
    torch.testing.assert_close(plain(x, condition), plain.linear(x))
