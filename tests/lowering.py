"""What a placement makes of sums of gradients and of parameters that other hosts read, written plainly.

The result is a graph in which sums and relays are ops like any other, to be simulated by `tests.reference`.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem


@dataclass(frozen=True)
class Plain:
    """A problem without sums of gradients, where each op runs, and the place of each op in the order of dispatch."""

    problem: PlacementProblem
    placement: np.ndarray
    place: dict[str, tuple[float, int]]


def plainly_lowered(problem: PlacementProblem, placement: np.ndarray) -> Plain:
    """Lower a placement (N,) by names and dictionaries."""
    graph, cluster = problem.graph, problem.cluster
    records = {record["name"]: record for record in graph.to_ops()}
    device = dict(zip(graph.op_names, placement.tolist(), strict=True))
    hosts = list(cluster.hosts)
    number = {d: hosts[:d].count(hosts[d]) for d in range(len(hosts))}
    place: dict[str, tuple[float, int]] = {
        name: (float(at), 0) for name, at in zip(graph.op_names, problem.priority.tolist(), strict=True)
    }

    def nearest(devices: list[int], home: int) -> int:
        return min(devices, key=lambda d: ((number[d] - number[home]) % len(hosts), d))

    for home_op in [name for name, record in records.items() if record["type"] == "gradient"]:
        chain, (source, output) = [], records[home_op]["inputs"][0]
        while _adds(records[source]):
            chain.append(source)
            source, output = records[source]["inputs"][0]
        if not chain:
            continue
        chain.reverse()
        parts = [((source, output), None)] + [(tuple(records[op]["inputs"][1]), op) for op in chain]
        home, held, spare = device[home_op], {}, []

        def add(op: str, at: int, a: tuple[str, int], b: tuple[str, int]) -> tuple[str, int]:
            device[op] = at
            records[op]["inputs"] = [list(a), list(b)]
            return op, 0

        for position, (part, op) in enumerate(parts):
            at = device[part[0]]
            if at in held:
                assert op is not None
                held[at] = add(op, at, held[at], part)
            else:
                held[at] = part
                spare += [op] if position else []
        sums = {}
        for host in sorted(set(hosts) - {hosts[home]}):
            there = sorted(d for d in held if hosts[d] == host)
            if there:
                first = nearest(there, home)
                sums[first] = held[first]
                for other in there:
                    if other != first:
                        sums[first] = add(str(spare.pop(0)), first, sums[first], held[other])
        near = [held[d] for d in sorted(held) if hosts[d] == hosts[home] and d != home]
        total = held.get(home)
        for part in [*near, *(sums[d] for d in sorted(sums))]:
            total = part if total is None else add(str(spare.pop(0)), home, total, part)
        assert total is not None
        assert not spare
        records[home_op]["inputs"] = [list(total)]

    if len(set(hosts)) > 1 and cluster.transfers == "unicast":
        _relay(records, device, place, hosts, nearest, graph)
    for record in records.values():
        record.pop("micro_batch", None)
        record.pop("pass", None)
    names = list(records)
    lowered = PlacementProblem(
        ComputationGraph.from_ops(graph.name, list(records.values()), graph.mode),
        cluster,
        problem.costs,
        problem.dispatch,
    )
    return Plain(lowered, np.array([device[name] for name in names]), place)


def _adds(record: dict) -> bool:
    of_none = record.get("pass") == "backward" and "micro_batch" not in record
    return of_none and record["type"] == "aten.add" and len(record["inputs"]) == 2


def _relay(records, device, place, hosts, nearest, graph) -> None:  # type: ignore[no-untyped-def]
    readers: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    for name, record in records.items():
        for position, (source, output) in enumerate(record["inputs"]):
            if "micro_batch" not in records[source] and records[source].get("pass") == "forward":
                readers[source, output].append((name, position))
    for tensor in sorted(readers, key=lambda t: (graph.index[t[0]], t[1])):
        source, output = tensor
        read = readers[tensor]
        if sum("micro_batch" in records[name] for name, _ in read) < 2 or not records[source]["outputs"][output]:
            continue
        if any("micro_batch" in records[other] for other, _ in records[source]["inputs"]):
            continue
        for host in range(max(hosts) + 1):
            name = f"{source} on host {host}" if not output else f"{source} [{output}] on host {host}"
            there = {device[op] for op, _ in read if hosts[device[op]] == host}
            active = host != hosts[device[source]] and len(there) > 1
            device[name] = nearest(sorted(there), device[source]) if active else device[source]
            place[name] = (place[source][0] + 0.5, len(place))
            records[name] = {
                "name": name,
                "type": "relay",
                "inputs": [list(tensor)],
                "outputs": [records[source]["outputs"][output]],
                "time_us": {"*": 0.0},
            }
            if active:
                for op, position in read:
                    if hosts[device[op]] == host:
                        records[op]["inputs"][position] = [name, 0]
