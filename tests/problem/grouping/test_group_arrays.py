import numpy as np

from placeto.problem.grouping import Groups
from placeto.problem.grouping.group_arrays import group_arrays
from tests.toys import random_graph


def test_ops_stand_by_group_in_topological_order_with_their_inputs() -> None:
    graph = random_graph(3, 30)
    group = np.arange(30) * 7 % 5
    arrays = group_arrays(graph, Groups(group, 5, ("",) * 5, ()))
    position = np.argsort(graph.topological_order)
    for g in range(5):
        ops = arrays.ops[arrays.op_ptr[g] : arrays.op_ptr[g + 1]]
        assert sorted(ops) == np.flatnonzero(group == g).tolist()
        assert (np.diff(position[ops]) > 0).all()
    for op in range(30):
        own = slice(arrays.in_ptr[op], arrays.in_ptr[op + 1])
        assert arrays.in_src[own].tolist() == graph.edge_src[graph.edge_dst == op].tolist()
        assert arrays.in_tensor[own].tolist() == graph.edge_tensor[graph.edge_dst == op].tolist()
