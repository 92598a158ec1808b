import torch

from placeto.policies.pooling import NeighbourhoodPooling


def test_pooling_sees_ancestors_descendants_and_parallel_nodes():
    torch.manual_seed(0)
    reach = torch.zeros(1, 4, 4, dtype=torch.bool)
    for i, j in ((0, 1), (0, 2), (0, 3), (1, 3), (2, 3)):
        reach[0, i, j] = True
    pool = NeighbourhoodPooling(16)
    x = torch.randn(4, 16, requires_grad=True)
    pool(x, reach, torch.zeros(4, dtype=torch.long))[1].sum().backward()
    touched = (x.grad.abs().sum(1) > 0).tolist()
    assert touched == [True, False, True, True]  # ancestor, itself, parallel, descendant


def test_graphs_of_a_batch_do_not_see_one_another():
    torch.manual_seed(0)
    reach = torch.zeros(2, 3, 3, dtype=torch.bool)
    reach[0, 0, 1] = reach[1, 0, 1] = reach[1, 0, 2] = True
    pool, x, batch = NeighbourhoodPooling(8), torch.randn(5, 8), torch.tensor([0, 0, 1, 1, 1])
    together = pool(x, reach, batch)
    torch.testing.assert_close(together[:2], pool(x[:2], reach[:1, :2, :2], batch[:2]))
    torch.testing.assert_close(together[2:], pool(x[2:], reach[1:], torch.zeros(3, dtype=torch.long)))
