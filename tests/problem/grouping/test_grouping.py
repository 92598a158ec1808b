from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import torch

from placeto.capture import capture_training
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping import Groups, cut_groups, expand, group_ops, join_groups, split_groups
from placeto.problem.problem import PlacementProblem
from tests.captures import Checkpointed
from tests.growth import assert_in_proportion
from tests.toys import random_graph

MB = 1_000_000


def problem(ops: list[dict], cluster: str = "2xp100") -> PlacementProblem:
    """Unless given otherwise, an op takes 100 us."""
    ops = [{"time_us": {"*": 100.0}} | op for op in ops]
    return PlacementProblem(ComputationGraph.from_ops("test", ops), load_cluster(cluster))


def together(result: Groups, graph: ComputationGraph, *names: str) -> bool:
    return len({int(result.group[graph.index[name]]) for name in names}) == 1


def chain(count: int, **fields: object) -> list[dict]:
    return [
        {"name": f"op{i}", "outputs": [8], "inputs": [[f"op{i - 1}", 0]] if i else []} | fields for i in range(count)
    ]


def recurrent(steps: int) -> list[dict]:
    """One weight, a product per step; backward: the gradient of the state and of the weight, the latter summed up.

    As captured: the weight, its first user and the last sum of its gradient are colocated.
    """
    ops: list[dict] = [
        {"name": "cell.weight", "type": "parameter", "module": "cell", "param_bytes": 8 * MB, "outputs": [8 * MB]}
    ]
    ops[0] |= {"time_us": {"*": 0.0}, "colocation": "w"}

    def name(step: int, kind: str) -> str:
        return f"cell{f'@{step}' if step else ''}{kind}"

    state = None
    for step in range(steps):
        ops.append({"name": f"x{step}", "outputs": [8]})
        inputs = [["cell.weight", 0], [f"x{step}", 0]] + ([[state, 0]] if state else [])
        op = {"name": name(step, "/mm"), "type": "aten.mm", "module": "cell", "flops": 1e9, "outputs": [8]}
        ops.append(op | {"inputs": inputs} | ({"colocation": "w"} if step == 0 else {}))
        state = name(step, "/mm")
    gradient, total = state, None
    for step in reversed(range(steps)):
        shared = {"type": "aten.mm", "module": "cell", "flops": 1e9, "outputs": [8]}
        before = [[f"x{step}", 0]] + ([[name(step - 1, "/mm"), 0]] if step else [])
        ops.append({"name": name(step, "/grad/mm"), "inputs": [[gradient, 0], ["cell.weight", 0]]} | shared)
        ops.append({"name": name(step, "/grad/mm_1"), "inputs": [[gradient, 0], *before]} | shared)
        ops[-1]["outputs"] = [8 * MB]
        if total is not None:
            sum_ = {"name": name(step, "/grad/add"), "type": "aten.add", "module": "cell", "outputs": [8 * MB]}
            sum_ |= {} if step else {"colocation": "w"}
            ops.append(sum_ | {"inputs": [[total, 0], [name(step, "/grad/mm_1"), 0]]})
            total = name(step, "/grad/add")
        else:
            total = name(step, "/grad/mm_1")
        gradient = name(step, "/grad/mm")
    return ops


def test_too_many_ops_are_contracted_along_edges_and_evenly() -> None:
    assert group_ops(problem(chain(50))).group.tolist() == list(range(50))
    with pytest.raises(ValueError, match="max_groups"):
        group_ops(problem(chain(4)), 0)
    graph = problem(chain(200))
    result = group_ops(graph, 20)
    assert expand(result, np.arange(20)).tolist() == result.group.tolist()
    with pytest.raises(ValueError, match="20 groups"):
        expand(result, np.array([1]))
    assert result.num_groups == 20
    assert np.all(np.diff(result.group) >= 0)  # contiguous parts of the chain
    assert np.bincount(result.group).max() <= 20


def test_parallel_chains_are_not_mixed() -> None:
    ops = [
        {"name": f"{c}{i}", "outputs": [MB], "inputs": [[f"{c}{i - 1}", 0]] if i else []}
        for c in "xy"
        for i in range(30)
    ]
    result = group_ops(problem(ops), 10)
    assert result.num_groups == 10
    for group in range(10):
        assert len({name // 30 for name in np.flatnonzero(result.group == group)}) == 1


def test_unconnected_ops_are_packed() -> None:
    result = group_ops(problem([{"name": f"op{i}"} for i in range(40)]), 8)
    assert result.num_groups == 8
    assert np.bincount(result.group).max() <= 8


@pytest.mark.parametrize("max_groups", [1, 3, 200])
def test_colocation_is_kept(max_groups: int) -> None:
    graph = problem([op | ({} if i % 7 else {"colocation": "same"}) for i, op in enumerate(chain(30))])
    result = group_ops(graph, max_groups)
    assert together(result, graph.graph, "op0", "op7", "op14", "op21", "op28")
    assert result.num_groups <= max_groups
    parts = split_groups(graph, group_ops(graph, 3), 100)
    assert together(parts, graph.graph, "op0", "op7", "op14", "op21", "op28")
    assert parts.num_groups == 26


def test_ops_of_no_cost_join_producer_or_first_user() -> None:
    free = {"time_us": {"*": 0.0}}
    graph = problem(
        [
            {"name": "weight", "type": "parameter", "param_bytes": 8, "outputs": [8]} | free,
            {"name": "a", "inputs": [["weight", 0]], "outputs": [8]},
            {"name": "view", "inputs": [["a", 0]], "outputs": [8]} | free,
            {"name": "b", "inputs": [["view", 0], ["weight", 0]]},
        ]
    )
    result = group_ops(graph)
    assert together(result, graph.graph, "weight", "a", "view")
    assert not together(result, graph.graph, "a", "b")


def test_light_ops_join_heavy_ones_of_their_module_and_heavy_ones_stand_apart() -> None:
    heavy = {"time_us": {"*": 5000.0}, "outputs": [8 * MB]}
    light = {"time_us": {"*": 10.0}, "outputs": [8 * MB]}
    graph = problem(
        [
            {"name": "one/relu", "type": "relu", "module": "one"} | light,
            {"name": "one.conv/convolution", "type": "convolution", "module": "one.conv", "inputs": [["one/relu", 0]]}
            | heavy,
            {"name": "two.conv/convolution", "type": "convolution", "module": "two.conv"}
            | {"inputs": [["one.conv/convolution", 0]]}
            | heavy,
            {"name": "two.conv/grad/add", "type": "add", "module": "two.conv"}
            | {"inputs": [["two.conv/convolution", 0], ["one.conv/convolution", 0]]}
            | light,
            {"name": "one.conv/grad/convolution_backward", "type": "convolution_backward", "module": "one.conv"}
            | {"inputs": [["two.conv/grad/add", 0], ["one/relu", 0]]}
            | heavy,
            *[{"name": f"far/op{i}"} | heavy for i in range(30)],  # few groups wouldn't be joined
        ]
    )
    result = group_ops(graph)
    assert result.num_groups == 3 + 30
    assert together(result, graph.graph, "one/relu", "one.conv/convolution")
    assert together(result, graph.graph, "two.conv/convolution", "two.conv/grad/add")
    assert not together(result, graph.graph, "one.conv/convolution", "one.conv/grad/convolution_backward")


def test_light_ops_are_not_joined_where_groups_are_few() -> None:
    light = {"time_us": {"*": 1.0}, "outputs": [8 * MB], "module": "m"}
    for count, groups in ((20, 20), (50, 30)):
        ops = [op | {"name": f"m/op{i}"} for i, op in enumerate(chain(count, **light))]
        for i in range(1, count):
            ops[i]["inputs"] = [[f"m/op{i - 1}", 0]]
        assert group_ops(problem(ops)).num_groups == groups


def test_gradients_of_a_shared_weight_stand_apart_but_their_last_sum_is_with_the_weight() -> None:
    graph = problem(recurrent(6))
    result = group_ops(graph)
    for step in range(1, 6):
        assert not together(result, graph.graph, f"cell@{step}/mm", f"cell@{step}/grad/mm_1")
        if step < 5:
            assert together(result, graph.graph, f"cell@{step}/grad/add", f"cell@{step}/grad/mm_1")
    assert together(result, graph.graph, "cell.weight", "cell/mm", "cell/grad/add")
    assert not together(result, graph.graph, "cell/mm", "cell/grad/mm")


@pytest.mark.parametrize("steps", [4, 12])
def test_groups_are_numbered_in_topological_order_and_sets_name_several(steps: int) -> None:
    graph = problem(recurrent(steps))
    result = group_ops(graph)
    position = np.argsort(graph.graph.topological_order)
    first = [position[result.group == group].min() for group in range(result.num_groups)]
    assert first == sorted(first)
    assert result.sets
    for members in result.sets:
        assert 2 <= len(set(members.tolist())) == len(members) < result.num_groups > members.max()
    assert np.array_equal(group_ops(problem(recurrent(steps))).group, result.group)
    assert group_ops(graph) is result


def assert_within(parts: Groups, groups: Groups, name_sets: bool = True) -> None:
    """Each part is in one group, and the parts of a group are a set."""
    assert np.unique(np.stack([groups.group, parts.group]), axis=1).shape[1] == parts.num_groups
    for group in range(groups.num_groups if name_sets else 0):
        members = np.unique(parts.group[groups.group == group])
        assert len(members) < 2 or any(np.array_equal(members, each) for each in parts.sets)


@pytest.mark.parametrize("cluster", ["2xv100", "8xh100"])
def test_joined_groups_are_unions_of_groups(cluster: str) -> None:
    problem = PlacementProblem(random_graph(0, 120), load_cluster(cluster))
    groups = group_ops(problem)
    for most in (groups.num_groups, groups.num_groups // 2, 4):
        joined = join_groups(problem, groups, most)
        assert len(np.unique(joined.group)) == joined.num_groups <= most
        assert_within(groups, joined, name_sets=False)
        assert join_groups(problem, groups, most) is joined
    np.testing.assert_array_equal(join_groups(problem, groups, groups.num_groups).group, groups.group)
    for join in (join_groups, split_groups):
        with pytest.raises(ValueError, match="max_groups must be >= 1, not 0"):
            join(problem, groups, 0)


@pytest.mark.parametrize(("ops", "coarse"), [(random_graph(0, 120).to_ops(), 20), (recurrent(40), 60)])
def test_parts_are_within_groups_and_as_many_as_asked(ops: list[dict], coarse: int) -> None:
    graph = problem(ops, "4xv100")
    groups = group_ops(graph, coarse)
    finest = split_groups(graph, groups, 10**6)
    for most in (groups.num_groups, 2 * groups.num_groups, 10**6):
        parts = split_groups(graph, groups, most)
        assert parts.num_groups == min(most, finest.num_groups) or parts.num_groups >= groups.num_groups == most
        assert_within(parts, groups)
        assert split_groups(graph, groups, most) is parts
        assert parts.group[parts.first_op].tolist() == list(range(parts.num_groups))
    assert finest.num_groups > 2 * groups.num_groups


def test_groups_are_cut_where_a_placement_does() -> None:
    graph = PlacementProblem(random_graph(0, 120), load_cluster("4xv100"))
    groups = group_ops(graph, 20)
    whole = np.arange(groups.num_groups)[groups.group] % 4
    assert cut_groups(graph, groups, whole) is groups
    finest = split_groups(graph, groups, 10**6)
    placement = np.random.default_rng(0).integers(4, size=finest.num_groups)[finest.group]
    cut = cut_groups(graph, groups, placement)
    assert cut_groups(graph, groups, placement.copy()) is cut
    np.testing.assert_array_equal(placement[cut.first_op][cut.group], placement)
    pairs = np.unique(np.stack([groups.group, placement]), axis=1)
    assert groups.num_groups < cut.num_groups == pairs.shape[1], "no finer than the placement"
    assert_within(cut, groups)


def test_edges_of_no_bytes_tie_nothing_together() -> None:
    """What only says what waits for what, here recomputation, leaves the groups as they are."""
    waiting = capture_training(Checkpointed(512, 8).to("meta"), [torch.empty(1024, 512, device="meta")])
    ops = waiting.to_ops()
    size = {op["name"]: op["outputs"] for op in ops}
    for op in ops:
        op["inputs"] = [[source, output] for source, output in op["inputs"] if size[source][output]]
    free = ComputationGraph.from_ops("free", ops)
    assert free.num_edges < waiting.num_edges
    groups = [group_ops(PlacementProblem(graph, load_cluster("4xv100"))) for graph in (waiting, free)]
    assert groups[0].group.tolist() == groups[1].group.tolist()


def test_empty_outputs_tie_where_there_is_nothing_else() -> None:
    empty = problem(chain(80, outputs=[0]), "4xv100")
    assert together(group_ops(empty, max_groups=20), empty.graph, "op0", "op1")


def test_calls_may_be_numbered_beyond_an_int64() -> None:
    ops = [{"name": f"m@{call}/op", "module": "m", "outputs": [8]} for call in (0, 1, 10**30)]
    ops += [{"name": "m@1/sum", "module": "m", "outputs": [8], "inputs": [[op["name"], 0] for op in ops]}]
    assert group_ops(problem(ops)).num_groups == 4


def star(count: int, centre_first: bool) -> list[dict]:
    """Where the centre is the last op of all and its leaves get lighter, 5,000 leaves took a minute."""
    leaves = [{"name": f"o{i}", "time_us": {"*": float(count - i)}, "outputs": [8]} for i in range(count)]
    centre = {"name": "centre", "time_us": {"*": 1.0}, "outputs": [8]}
    if centre_first:
        return [centre, *(leaf | {"inputs": [["centre", 0]]} for leaf in leaves)]
    return [*leaves, centre | {"inputs": [[leaf["name"], 0] for leaf in leaves]}]


def star_with_gradients(count: int) -> list[dict]:
    """What reads the centre in the backward pass was compared with all leaves: 50,000 took a minute."""
    op = {"module": "m", "outputs": [8], "time_us": {"*": 100.0}}
    ops = [{"name": "centre", **op}, *({"name": f"o{i}", "inputs": [["centre", 0]], **op} for i in range(count))]
    ops += [{"name": "loss", "inputs": [[each["name"], 0] for each in ops[1:]], **op}]
    return ops + [
        {"name": f"b{i}", "inputs": [["loss", 0], ["centre", 0]], "pass": "backward", **op} for i in range(count)
    ]


LARGE: dict[str, Callable[[int], list[dict]]] = {
    "recurrent": recurrent,
    "star": partial(star, centre_first=True),
    "star with its centre last": partial(star, centre_first=False),
    "star with gradients": star_with_gradients,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_time_grows_as_the_number_of_ops(name: str) -> None:
    @cache
    def large(count: int) -> PlacementProblem:
        graph = problem(LARGE[name](count), "4xv100")
        graph.op_time  # noqa: B018 - not what is timed
        assert group_ops(graph).num_groups <= 200
        return graph

    def grouping(count: int) -> Callable[[], object]:
        return lambda: group_ops.__wrapped__(large(count))  # which isn't kept

    assert_in_proportion(grouping, 4_000)
