import torch
from torch import nn

from placeto.policies.message_passing import (
    DirectedMessagePassing,
    EdgeMessagePassing,
    TwoWayMessagePassing,
    mlp,
)

# 0 -> 1 -> 3, 0 -> 2 -> 3
EDGES = torch.tensor([[0, 0, 1, 2], [1, 2, 3, 3]])


def as_sum(layer: DirectedMessagePassing) -> None:
    """Make h and g identities on positive numbers."""
    nn.init.eye_(layer.source.weight)
    nn.init.zeros_(layer.source.bias)
    for part in layer.update_mlp:
        if isinstance(part, nn.Linear):
            nn.init.eye_(part.weight)
            nn.init.zeros_(part.bias)


def test_messages_go_along_the_arcs_and_are_scaled_by_the_root_of_their_number():
    x = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    along = DirectedMessagePassing(1, "source_to_target")
    as_sum(along)
    torch.testing.assert_close(along(x, EDGES).flatten(), torch.tensor([0.0, 1.0, 1.0, 5.0 / 2**0.5]))
    against = DirectedMessagePassing(1, "target_to_source")
    as_sum(against)
    torch.testing.assert_close(against(x, EDGES).flatten(), torch.tensor([5.0 / 2**0.5, 4.0, 4.0, 0.0]))


def test_message_passing_reaches_as_far_as_its_rounds_in_both_ways():
    torch.manual_seed(0)
    for rounds in (0, 1, 2):
        layer = TwoWayMessagePassing(4, rounds)
        x = torch.randn(4, 4, requires_grad=True)
        layer(x, EDGES)[3].sum().backward()
        touched = x.grad.abs().sum(1) > 0
        assert touched.tolist() == [rounds >= 2, rounds >= 1, rounds >= 1, True]


def test_message_passing_does_not_depend_on_the_order_of_nodes():
    torch.manual_seed(0)
    layer, x, order = TwoWayMessagePassing(4, 2), torch.randn(4, 4), torch.tensor([2, 0, 3, 1])
    place = torch.argsort(order)  # new position of each old node
    torch.testing.assert_close(layer(x[order], place[EDGES]), layer(x, EDGES)[order])


def test_messages_with_features_of_arcs_come_from_neighbours_and_their_arcs():
    torch.manual_seed(0)
    layer, z = EdgeMessagePassing(16, 1), torch.randn(4, 16, requires_grad=True)
    attr = torch.randn(4, 1, requires_grad=True)
    layer(z, EDGES, attr)[3].sum().backward()
    assert (z.grad.abs().sum(1) > 0).tolist() == [False, True, True, True]  # node 0 is two arcs away
    assert (attr.grad.abs().sum(1) > 0).tolist() == [False, False, True, True]


def test_messages_with_features_of_arcs_depend_on_no_order():
    torch.manual_seed(0)
    layer, z, attr = EdgeMessagePassing(4, 1), torch.randn(4, 4), torch.randn(4, 1)
    order, arcs = torch.tensor([2, 0, 3, 1]), torch.tensor([3, 1, 0, 2])
    place = torch.argsort(order)
    torch.testing.assert_close(layer(z[order], place[EDGES[:, arcs]], attr[arcs]), layer(z, EDGES, attr)[order])


def test_mlp_ends_without_activation_unless_asked():
    assert isinstance(mlp([2, 3, 4])[-1], nn.Linear)
    assert isinstance(mlp([2, 3, 4], last_activation=True)[-1], nn.ReLU)
