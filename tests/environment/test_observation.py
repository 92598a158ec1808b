import numpy as np
import pytest
import torch

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.observation import observe, score_moves
from placeto.environment.tensors import to_data
from placeto.problem.grouping import expand
from placeto.problem.problem import PlacementProblem
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import simulate
from tests.toys import fork_of_chains, random_graph, toy_cluster, two_cliques


def batch_of(problems):
    return InstanceBatch.of([make_instance(p) for p in problems])


def observe_all(batch, index, placement):
    episodes = len(index)
    seen, *scores = observe(batch, index, placement, np.zeros(placement.shape, bool), np.zeros(episodes, np.int64))
    return to_data(seen), *scores


@pytest.fixture(scope="module")
def problems():
    clusters = [toy_cluster(2), toy_cluster(3, (1.0, 2.0, 0.5))]
    return [PlacementProblem(random_graph(seed, 40 + 20 * seed), clusters[seed % 2]) for seed in range(3)]


@pytest.fixture(scope="module")
def observed(problems):
    batch, random = batch_of(problems), np.random.default_rng(0)
    index = np.array([0, 1, 2, 1])
    placement = np.stack([random.integers(batch.num_devices[i], size=batch.max_groups) for i in index])
    return batch, index, placement, observe_all(batch, index, placement)


def test_makespans_and_columns_of_nodes_and_pairs_agree_with_the_schedule(problems, observed):
    batch, index, placement, (data, makespan, _) = observed
    for b, i in enumerate(index):
        problem, groups = problems[i], batch.instances[i].groups
        ops = expand(groups, placement[b, : groups.num_groups])
        schedule, nodes = simulate(problem, ops), data.batch == b
        assert makespan[b] == schedule.makespan_us
        time = problem.op_time[np.arange(problem.num_ops), ops]
        busy = np.bincount(ops, time, problem.num_devices)
        by_group = np.bincount(groups.group, time)
        x, pair = data.x[nodes], data.pair[nodes][:, : problem.num_devices]
        np.testing.assert_allclose(x[:, NODE.time] * problem.single_device_us, by_group, rtol=1e-5)
        np.testing.assert_allclose(pair[0, :, PAIR.load] * makespan[b], busy, rtol=1e-5)
        first = [schedule.start_us[groups.group == g].min() for g in range(groups.num_groups)]
        np.testing.assert_allclose(x[:, NODE.first_start] * makespan[b], first, rtol=1e-5, atol=1e-3)
        slack = [schedule.slack_us[groups.group == g].min() for g in range(groups.num_groups)]
        np.testing.assert_allclose(x[:, NODE.min_slack] ** 2 * makespan[b], slack, rtol=1e-4, atol=1e-5 * makespan[b])
        assert pair[:, :, PAIR.current].sum() == groups.num_groups
        assert not data.offered[nodes][:, problem.num_devices :].any()


def test_every_column_is_finite_and_of_moderate_size(observed):
    data = observed[3][0]
    for values in (data.x, data.pair, data.edge_attr):
        assert torch.isfinite(values).all()
        assert values.abs().max() < 20


def test_arcs_join_groups_that_exchange_tensors(problems):
    batch = batch_of(problems[:1])
    instance, graph = batch.instances[0], problems[0].graph
    group = instance.groups.group
    pairs = {(group[s], group[d]) for s, d in zip(graph.edge_src, graph.edge_dst, strict=True) if group[s] != group[d]}
    assert set(map(tuple, instance.pairs.T.tolist())) == {(int(a), int(b)) for a, b in pairs}


def test_cut_arcs_are_marked():
    problem = two_cliques(3)
    batch = batch_of([problem])
    instance = batch.instances[0]
    group_of = dict(zip(problem.graph.op_names, instance.groups.group, strict=True))
    placement = np.zeros((1, batch.max_groups), np.int64)
    for name, group in group_of.items():
        placement[0, group] = name.startswith("b")
    data = observe_all(batch, np.array([0]), placement)[0]
    cut = data.edge_attr[:, EDGE.cut] > 0
    assert cut.sum() == 1
    assert data.edge_index[:, cut].flatten().tolist() == [group_of["a0"], group_of["b0"]]


def test_estimates_are_exact_on_independent_chains():
    """An op moved to an idle device: no lateness, no wait, and the gain is what the simulator says."""
    problem = fork_of_chains(2, 1)
    batch = batch_of([problem])
    placement = np.zeros((1, 2), np.int64)
    data, makespan, _ = observe_all(batch, np.array([0]), placement)
    assert makespan[0] == 20.0
    pair = data.pair[1, 1]  # the second chain, on the idle device
    assert pair[PAIR.late_self] == pytest.approx(-0.3)  # it would end 10 us early: clipped at 0.3 of 20 us
    assert pair[PAIR.gain] == pytest.approx(0.5)
    assert pair[PAIR.wait] == 0.0


def test_score_moves_equals_simulating_each_move(problems):
    batch, random = batch_of(problems), np.random.default_rng(1)
    index = np.array([0, 1, 2])
    placement = np.stack([random.integers(batch.num_devices[i], size=batch.max_groups) for i in index])
    group = np.stack([random.integers(batch.num_groups[i], size=5) for i in index])
    device = np.stack([random.integers(batch.num_devices[i], size=5) for i in index])
    scores = score_moves(batch, index, placement, group, device)
    for b, i in enumerate(index):
        for m in range(5):
            moved = placement[b].copy()
            moved[group[b, m]] = device[b, m]
            groups = batch.instances[i].groups
            schedule = simulate(problems[i], expand(groups, moved[: groups.num_groups]))
            assert scores[b, m] == penalised(schedule.makespan_us, schedule.overflow)


def test_memory_over_the_limit_is_penalised():
    graph = random_graph(0, 20)
    problem = PlacementProblem(graph, toy_cluster(2, memory=int(graph.output_bytes.max()) + 1))
    batch = batch_of([problem])
    _, makespan, overflow = observe_all(batch, np.array([0]), np.zeros((1, batch.max_groups), np.int64))
    expected = simulate(problem, np.zeros(20, np.int64)).overflow
    assert overflow[0] == pytest.approx(expected)
    assert expected > 0
    assert penalised(makespan, overflow)[0] == pytest.approx(makespan[0] * (1 + 10 * expected))


def test_reach_is_the_transitive_closure_of_forward_arcs(observed):
    import networkx as nx

    data = observed[3][0]
    for instance in data.instances:
        graph = nx.DiGraph()
        graph.add_nodes_from(range(instance.groups.num_groups))
        position = instance.traversal
        graph.add_edges_from((a, c) for a, c in instance.pairs.T.tolist() if position[a] < position[c])
        for node in graph:
            assert set(np.flatnonzero(instance.reach[node]).tolist()) == nx.descendants(graph, node)
