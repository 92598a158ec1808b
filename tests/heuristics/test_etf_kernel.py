"""ETF and m-SCT against a plain loop over all ready ops and devices, and the time that they take on stars."""

from collections.abc import Callable

import numpy as np
import pytest

from placeto.heuristics.etf_kernel import MOST_READY, Favourites
from placeto.heuristics.list_scheduling import floating_ops, hard_groups, place_by_start, upward_rank
from placeto.heuristics.rules import demands
from placeto.problem.problem import PlacementProblem
from tests.cases import problem_of, uneven_problem
from tests.growth import assert_in_proportion


def plain_etf(
    problem: PlacementProblem, follow: np.ndarray, queueing: bool, demand: np.ndarray, favourites: Favourites
) -> list[int]:
    """The placement (N,): at each step the best of all pairs of a ready op and a device.

    Arrivals of an op are estimated when it becomes ready, and whenever a group is bound while an input of it floats.
    """
    graph, cluster = problem.graph, problem.cluster
    floats, follow = floating_ops(problem, follow)
    need_of_group, rank, count = np.bincount(follow, weights=demand), upward_rank(problem), cluster.num_devices
    edges = list(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), graph.edge_tensor.tolist(), strict=True))
    inputs = [[(src, tensor) for src, dst, tensor in edges if dst == op] for op in range(graph.num_ops)]
    home: dict[int, int] = {}
    finish, delivered = dict.fromkeys(np.flatnonzero(floats).tolist(), 0.0), dict[tuple[int, int], float]()
    used, free, link_free = [0.0] * count, [0.0] * count, dict[tuple[int, int], float]()
    guest, until = [-1] * count, [0.0] * count
    arrival: dict[int, list[float]] = {}
    placed = set(finish)

    def floating_groups(op: int) -> list[int]:
        groups = [follow[src] for src, _ in inputs[op] if floats[src] and follow[src] != follow[op]]
        return list(dict.fromkeys(group for group in groups if group not in home))

    def need(op: int) -> float:
        own = 0.0 if follow[op] in home else need_of_group[follow[op]]
        for group in floating_groups(op):
            own += need_of_group[group]
        return own

    def arrives(op: int, device: int, books: bool = False) -> float:
        latest = 0.0
        for src, tensor in inputs[op]:
            source = home.get(follow[src], device)
            if source == device:
                latest = max(latest, finish[src])
                continue
            if (tensor, device) not in delivered:
                line = (source, device if cluster.link == "pair" else source)
                waits = queueing and cluster.link != "free"
                begin = max(finish[src], link_free.get(line, 0.0)) if waits else finish[src]
                travel = graph.output_bytes[tensor] / cluster.bandwidth[source, device]
                there = begin + cluster.latency_us[source, device] + travel
                if not books:
                    latest = max(latest, there)
                    continue
                link_free[line] = there + cluster.link_gap_us
                for other in range(count) if cluster.transfers == "broadcast" else [device]:
                    delivered.setdefault((tensor, other), there)
            latest = max(latest, delivered[tensor, device])
        return latest

    def starts(op: int, device: int) -> float:
        start, child = max(arrival[op][device], free[device]), guest[device]
        if child >= 0 and child != op and child not in placed:
            room = used[device] + need_of_group[follow[child]] <= cluster.memory[device]
            if home.get(follow[child], device if room else -1) == device:
                return max(start, min(until[device], max(arrival[op])))
        return start

    while len(placed) < graph.num_ops:
        for op in set(range(graph.num_ops)) - placed - set(arrival):
            if all(src in placed for src, _ in inputs[op]):
                arrival[op] = [arrives(op, device) for device in range(count)]
        ready = [(op, d) for op in set(arrival) - placed for d in range(count) if home.get(follow[op], d) == d]
        fitting = [(op, d) for op, d in ready if follow[op] in home or used[d] + need(op) <= cluster.memory[d]]
        op, device = min(
            fitting or ready,
            key=lambda pair: (starts(*pair), guest[pair[1]] != pair[0], -rank[pair[0]], pair[0],
                              problem.op_time[pair], pair[1]),
        )  # fmt: skip
        begin, bound = starts(op, device), [*floating_groups(op), *({follow[op]} - set(home))]
        awaits = [other for other in set(arrival) - placed - {op} if floating_groups(other)]
        used[device] += need(op)
        home |= dict.fromkeys(bound, device)
        for other in awaits if bound else []:
            arrival[other] = [arrives(other, d) for d in range(count)]
        arrives(op, device, books=True)
        placed.add(op)
        finish[op] = begin + problem.op_time[op, device]
        free[device] = finish[op] + (cluster.overhead_us[device] if problem.op_time[op, device] > 0 else 0.0)
        guest[device], until[device] = int(favourites.child[op]), finish[op] + favourites.patience_us[op]
    for group in range(len(need_of_group)):
        if group not in home:
            home[group] = int(np.argmax(cluster.memory - used))
            used[home[group]] += need_of_group[group]
    return [home[group] for group in follow]


@pytest.mark.parametrize("seed", range(60))
def test_the_soonest_of_all_pairs_is_taken(seed: int) -> None:
    random = np.random.default_rng(seed)
    problem = uneven_problem(random, int(random.integers(2, 50)), int(random.integers(1, 5)))
    follow = hard_groups(problem)
    child = np.full(problem.num_ops, -1)
    for src, dst in zip(problem.graph.edge_src, problem.graph.edge_dst, strict=True):
        if seed % 2 and random.random() < 0.5 and dst not in child:  # each is the favourite of one op at most
            child[src] = dst
    favourites = Favourites(child, random.integers(0, 30, problem.num_ops).astype(float))
    for queueing in (True, False):
        demand = demands(problem)[seed % 4 // 2]
        placement, _ = place_by_start(problem, follow, queueing, demand, favourites)
        assert placement.tolist() == plain_etf(problem, follow, queueing, demand, favourites)


def test_of_more_ready_ops_than_are_considered_those_of_the_greatest_rank_come_first() -> None:
    times = np.random.default_rng(0).permutation(MOST_READY + 100) + 1.0
    problem = problem_of([{"name": f"o{i}", "time_us": {"*": time}} for i, time in enumerate(times.tolist())], "1xv100")
    _, order = place_by_start(problem, hard_groups(problem), True, demands(problem)[0])
    assert times[order].tolist() == sorted(times.tolist(), reverse=True)


def star(leaves: int, parameters: bool) -> PlacementProblem:
    """One op that all others read; each of these may read a parameter of its own as well."""
    own = [{"name": f"p{i}", "outputs": [8], "param_bytes": 8, "time_us": {"*": 0.0}} for i in range(leaves)]
    ops = [{"name": "root", "time_us": {"*": 1.0}, "outputs": [8]}, *(own if parameters else [])]
    for i in range(leaves):
        inputs = [["root", 0], *([[f"p{i}", 0]] if parameters else [])]
        ops.append({"name": f"o{i}", "time_us": {"*": 1.0}, "outputs": [8], "inputs": inputs})
    return problem_of(ops, "4xv100")


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [False, True])
def test_a_star_takes_time_in_proportion_to_its_leaves(parameters: bool) -> None:
    """Eight times the leaves took 64 times as long."""

    def placing(leaves: int) -> Callable[[], object]:
        problem = star(leaves, parameters)
        follow, demand = hard_groups(problem), demands(problem)[0]
        upward_rank(problem), problem.arrays
        return lambda: place_by_start(problem, follow, True, demand)

    assert_in_proportion(placing, 12_000)
