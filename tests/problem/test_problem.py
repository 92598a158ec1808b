from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.errors import GraphError
from placeto.problem.cluster import Device, load_cluster
from placeto.problem.costs import ROOFLINE
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate, simulate_batch
from tests.reference import random_cluster, random_graph, random_problem
from tests.toys import linked

FAST = Device("a", "fast", flops=2e12, memory_bandwidth=1e11, memory=10**9, overhead_us=2.0)
SLOW = Device("b", "slow", flops=1e12, memory_bandwidth=1e11, memory=10**9, overhead_us=1.0)
MIXED = linked([FAST, SLOW], 1000.0)


def test_op_time_is_the_roofline_unless_measured() -> None:
    graph = ComputationGraph.from_ops(
        "g",
        [
            {"name": "compute", "flops": 2e9, "bytes_accessed": 1e6},
            {"name": "memory", "flops": 2e6, "bytes_accessed": 1e9},
            {"name": "free"},
            {"name": "measured", "flops": 2e9, "time_us": {"fast": 7.0}},
            {"name": "everywhere", "flops": 2e9, "time_us": {"*": 8.0, "slow": 9.0}},
            {"name": "measured free", "flops": 2e9, "time_us": {"*": 0}},
        ],
    )
    expected = [[1000, 2000], [1e4, 1e4], [0, 0], [7, 2000], [8, 9], [0, 0]]
    problem = PlacementProblem(graph, MIXED, ROOFLINE)
    np.testing.assert_array_equal(problem.op_time, expected)
    assert hash(problem) != hash(PlacementProblem(graph, MIXED))  # by identity


def test_bounds_in_closed_form() -> None:
    """A chain of two ops, 10 and 20 us on the fast device, and one op of 2 us beside it."""
    time = [{"fast": 10.0, "slow": 20.0}, {"fast": 20.0, "slow": 40.0}, {"*": 2.0}]
    ops = [{"name": f"o{i}", "outputs": [0], "time_us": t} for i, t in enumerate(time)]
    ops[1]["inputs"] = [["o0", 0]]
    problem = PlacementProblem(ComputationGraph.from_ops("g", ops), MIXED)
    assert problem.single_device_us == 10 + 2 + 20 + 2 + 2 + 2
    assert problem.lower_bound_us == 10 + 20 + 2  # the chain; the work is (12 + 22 + 3) / 2
    assert simulate(problem, np.array([0, 0, 1])).makespan_us == 10 + 2 + 20 + 2

    parallel = ComputationGraph.from_ops("p", [{"name": f"o{i}", "time_us": {"*": 4.0}} for i in range(6)])
    assert PlacementProblem(parallel, MIXED).lower_bound_us == 6 * (4 + 1) / 2
    assert PlacementProblem(parallel, MIXED).longest_path_us == 4 + 1


@pytest.mark.parametrize(
    ("transfers", "link"), [("unicast", "egress"), ("unicast", "pair"), ("broadcast", "egress"), ("broadcast", "pair")]
)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_placement_beats_the_lower_bound(transfers: str, link: str, seed: int) -> None:
    """All placements of tiny graphs, on devices that differ in speed and overhead."""
    rng = np.random.default_rng(seed)
    problems = []
    while len(problems) < 4:
        cluster = random_cluster(rng, transfers, link)
        if 2 <= cluster.num_devices <= 4:
            problems.append(PlacementProblem(random_graph(rng, int(rng.integers(1, 6))), cluster))
    for problem in problems:
        every = np.array(list(product(range(problem.num_devices), repeat=problem.num_ops)))
        makespans, _ = simulate_batch(problem, every)
        assert problem.lower_bound_us == pytest.approx(_bound(problem), rel=1e-12)
        assert problem.lower_bound_us <= makespans.min() * (1 + 1e-12)
        assert problem.single_device_us >= makespans.min()


def _bound(problem: PlacementProblem) -> float:
    """The bound by its definition, paths listed one by one."""
    graph, overhead = problem.graph, problem.cluster.overhead_us
    busy = [min(t + o * (t > 0) for t, o in zip(row, overhead, strict=True)) for row in problem.op_time]
    children = [graph.edge_dst[graph.edge_src == op].tolist() for op in range(graph.num_ops)]

    def longest(op: int) -> float:
        return max([busy[op], *(problem.op_time[op].min() + longest(child) for child in children[op])])

    return max(max(map(longest, range(graph.num_ops))), sum(busy) / problem.num_devices)


@pytest.mark.parametrize("transfers", ["unicast", "broadcast"])
def test_the_lower_bound_is_reached_where_nothing_stands_in_the_way(transfers: str) -> None:
    devices = tuple(Device(f"d{i}", "x", 1.0, 1.0, 10**9, 0.5) for i in range(3))
    cluster = linked(devices, transfers=transfers)
    alone = [{"name": f"o{i}", "time_us": {"*": 2.0}} for i in range(6)]
    problem = PlacementProblem(ComputationGraph.from_ops("alone", alone), cluster)
    assert problem.lower_bound_us == simulate(problem, np.arange(6) % 3).makespan_us == 2 * 2.5
    fork = [{"name": "a", "outputs": [0], "time_us": {"*": 4.0}}]
    fork += [{"name": f"b{i}", "inputs": [["a", 0]], "time_us": {"*": 6.0}} for i in range(2)]
    problem = PlacementProblem(ComputationGraph.from_ops("fork", fork), cluster)
    assert problem.lower_bound_us == simulate(problem, np.array([0, 1, 2])).makespan_us == 4 + 6 + 0.5


def test_single_device_equals_its_simulation_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        problem, _ = random_problem(rng, "unicast", "egress")
        each = [simulate(problem, np.full(problem.num_ops, d)).makespan_us for d in range(problem.num_devices)]
        assert problem.single_device_us == min(each)


def test_parameters_count_four_times_in_training_and_once_in_inference() -> None:
    ops = [{"name": "a", "param_bytes": 100}]
    for mode, multiplier in (("training", 4), ("inference", 1)):
        problem = PlacementProblem(ComputationGraph.from_ops("g", ops, mode), MIXED)
        assert problem.resident_bytes.tolist() == [100 * multiplier]
        assert simulate(problem, np.array([1])).peak_memory.tolist() == [0, 100 * multiplier]


def test_memory_beyond_int64_is_refused() -> None:
    graph = ComputationGraph.from_ops("huge", [{"name": "a", "param_bytes": 2**62}])
    with pytest.raises(GraphError, match="graph 'huge': parameters and tensors together exceed int64"):
        PlacementProblem(graph, MIXED)
    ComputationGraph.from_ops("huge", [{"name": "a", "param_bytes": 2**62}], "inference")


def test_all_arrays_are_of_one_type() -> None:
    """Those that kernels make to lower problems are writable, too."""
    for column in PlacementProblem(random_graph(np.random.default_rng(1), 5), load_cluster("2xk80")).arrays:
        assert column.dtype in (np.int64, np.float64)
        assert column.flags.writeable
