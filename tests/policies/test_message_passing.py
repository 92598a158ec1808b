import torch
from torch import nn

from placeto.policies.message_passing import EdgeMessagePassing, mlp

# 0 -> 1 -> 3, 0 -> 2 -> 3
EDGES = torch.tensor([[0, 0, 1, 2], [1, 2, 3, 3]])


def test_messages_with_features_of_arcs_come_from_neighbours_and_their_arcs():
    layer, z = EdgeMessagePassing(16, 1), torch.randn(4, 16, requires_grad=True)
    attr = torch.randn(4, 1, requires_grad=True)
    layer(z, EDGES, attr)[3].sum().backward()
    assert (z.grad.abs().sum(1) > 0).tolist() == [False, True, True, True]  # node 0 is two arcs away
    assert (attr.grad.abs().sum(1) > 0).tolist() == [False, False, True, True]


def test_messages_with_features_of_arcs_depend_on_no_order():
    layer, z, attr = EdgeMessagePassing(4, 1), torch.randn(4, 4), torch.randn(4, 1)
    order, arcs = torch.tensor([2, 0, 3, 1]), torch.tensor([3, 1, 0, 2])
    place = torch.argsort(order)
    torch.testing.assert_close(layer(z[order], place[EDGES[:, arcs]], attr[arcs]), layer(z, EDGES, attr)[order])


def test_mlp_ends_without_activation():
    assert isinstance(mlp([2, 3, 4])[-1], nn.Linear)
