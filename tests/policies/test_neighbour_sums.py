import numpy as np
import torch

from placeto.policies.neighbour_sums import neighbour_sums

ARCS = np.array([[0, 0, 1, 2], [1, 2, 3, 3]])  # 0 -> 1 -> 3, 0 -> 2 -> 3


def test_sums_along_and_against_the_arcs_by_hand():
    sent = torch.arange(4.0).repeat(2, 1)[:, None, :, None].expand(2, 1, 4, 3)
    along, against = neighbour_sums(sent, ARCS)
    np.testing.assert_array_equal(along[0, :, 1], [0, 0, 0, 3])
    np.testing.assert_array_equal(against[0, :, 2], [3, 3, 3, 0])


def test_the_gradient_is_that_of_a_product_with_the_arcs():
    sent, weight = torch.randn(2, 3, 4, 2, requires_grad=True), torch.randn(2, 3, 4, 2)
    matrix = torch.zeros(4, 4)
    matrix[ARCS[1], ARCS[0]] = 1.0
    by_product = torch.einsum("wij,wfjs->wfis", torch.stack([matrix, matrix.T]), sent)
    (expected,) = torch.autograd.grad((by_product * weight).sum(), sent)
    (gradient,) = torch.autograd.grad((neighbour_sums(sent, ARCS) * weight).sum(), sent)
    torch.testing.assert_close(gradient, expected)
