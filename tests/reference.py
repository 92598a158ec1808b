"""A slow, plain simulator written straight from the semantics, to check the fast one against.

Events in a heap, queues in deques, names compared as strings, one delivery per edge. Shares no code with placeto's.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placeto.cluster import Cluster, Device
from placeto.cost import PlacementProblem
from placeto.graph import ComputationGraph

DELIVERY, LINK, DEVICE = 0, 1, 2


@dataclass
class Send:
    """One tensor on its way over one link."""

    tensor: tuple[str, int]
    src: str
    consumers: list[str]
    ready: float
    cost: float
    broadcast: bool
    start: float = -1.0
    finish: float = -1.0


@dataclass
class Result:
    """Everything by name."""

    makespan: float = 0.0
    start: dict[str, float] = field(default_factory=dict)
    finish: dict[str, float] = field(default_factory=dict)
    sends: list[Send] = field(default_factory=list)
    device_order: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    link_order: dict[Any, list[Send]] = field(default_factory=lambda: defaultdict(list))


def reference(problem: PlacementProblem, placement: np.ndarray) -> Result:
    """Simulate one placement (N,)."""
    graph, cluster = problem.graph, problem.cluster
    names, devices = graph.op_names, cluster.device_names
    device_of = {name: devices[d] for name, d in zip(names, placement.tolist(), strict=True)}
    number = {device: d for d, device in enumerate(devices)}
    time_of = {name: problem.op_time[i, placement[i]] for i, name in enumerate(names)}
    edges = [
        (names[s], names[d], int(o)) for s, d, o in zip(graph.edge_src, graph.edge_dst, graph.edge_output, strict=True)
    ]
    out_edges, waiting = defaultdict(list), dict.fromkeys(names, 0)
    for parent, child, output in edges:
        out_edges[parent].append((child, output))
        waiting[child] += 1
    size = {(n, o): int(b) for i, n in enumerate(names) for o, b in enumerate(_outputs(graph, i))}

    result = Result()
    device_queue: dict[str, deque[str]] = {device: deque() for device in devices}
    link_queue: dict[Any, deque[Send]] = defaultdict(deque)
    idle_devices = set(devices)
    busy_links: set[Any] = set()
    heap: list[tuple[float, int, Any, int]] = []
    pushed = 0

    def push(time: float, kind: int, tie: Any) -> None:
        nonlocal pushed
        pushed += 1
        heapq.heappush(heap, (time, kind, tie, pushed))

    def become_ready(op: str, time: float) -> None:
        device = device_of[op]
        device_queue[device].append(op)
        if device in idle_devices:
            idle_devices.remove(device)
            push(time, DEVICE, device)

    for op in names:
        if waiting[op] == 0:
            become_ready(op, 0.0)

    while heap:
        now, kind, tie, _ = heapq.heappop(heap)
        result.makespan = max(result.makespan, now)
        if kind == DELIVERY:
            child = tie[1]
            waiting[child] -= 1
            if waiting[child] == 0:
                become_ready(child, now)
        elif kind == LINK:
            queue = link_queue[tie]
            if not queue:
                busy_links.remove(tie)
            elif queue[0].ready > now:
                push(queue[0].ready, LINK, tie)
            else:
                send = queue.popleft()
                send.start, send.finish = now, now + send.cost
                result.link_order[tie].append(send)
                for child in send.consumers:
                    push(send.finish, DELIVERY, (send.tensor[0], child, send.tensor[1]))
                push(send.finish + cluster.link_gap_us, LINK, tie)
        else:
            device = tie
            if not device_queue[device]:
                idle_devices.add(device)
                continue
            op = device_queue[device].popleft()
            finish = now + time_of[op]
            result.start[op], result.finish[op] = now, finish
            result.device_order[device].append(op)
            overhead = cluster.devices[number[device]].overhead_us
            push(finish + (0.0 if time_of[op] == 0.0 else overhead), DEVICE, device)
            sends: dict[Any, Send] = {}
            for child, output in out_edges[op]:  # in op order of the children
                if device_of[child] == device:
                    push(finish, DELIVERY, (op, child, output))
                    continue
                broadcast = cluster.transfers == "broadcast" and cluster.link == "egress"
                key = output if broadcast else (output, device_of[child])
                if key not in sends:
                    sends[key] = Send((op, output), device, [], finish, 0.0, broadcast)
                send = sends[key]
                send.consumers.append(child)
                s, d = number[device], number[device_of[child]]
                cost = cluster.latency_us[s, d] + size[op, output] / cluster.bandwidth[s, d]
                send.cost = max(send.cost, cost)
            for send in sends.values():
                link = device if cluster.link == "egress" else (device, device_of[send.consumers[0]])
                link_queue[link].append(send)
                result.sends.append(send)
                if link not in busy_links:
                    busy_links.add(link)
                    push(send.ready, LINK, link)

    assert len(result.start) == len(names)
    return result


def _outputs(graph: ComputationGraph, op: int) -> np.ndarray:
    return graph.output_bytes[graph.output_ptr[op] : graph.output_ptr[op + 1]]


def reference_memory(problem: PlacementProblem, placement: np.ndarray, result: Result) -> dict[str, int]:
    """Most bytes on each device: lives (device, from, to, bytes) added up at each instant at which one begins."""
    graph, devices = problem.graph, problem.cluster.device_names
    names = graph.op_names
    device_of = {name: devices[d] for name, d in zip(names, placement.tolist(), strict=True)}
    size = {(n, o): int(b) for i, n in enumerate(names) for o, b in enumerate(_outputs(graph, i))}
    edges = [
        (names[s], names[d], int(o)) for s, d, o in zip(graph.edge_src, graph.edge_dst, graph.edge_output, strict=True)
    ]
    lives: list[tuple[str, float, float, int]] = []
    for (op, output), count in size.items():
        end = result.finish[op]
        for parent, child, o in edges:
            if (parent, o) == (op, output) and device_of[child] == device_of[op]:
                end = max(end, result.finish[child])
        for send in result.sends:
            if send.tensor == (op, output):
                end = max(end, send.finish)
        lives.append((device_of[op], result.start[op], end, count))
    for send in result.sends:
        for device in {device_of[child] for child in send.consumers}:
            end = max(result.finish[child] for child in send.consumers if device_of[child] == device)
            lives.append((device, send.finish, end, size[send.tensor]))
    peak = {}
    for device in problem.cluster.device_names:
        on_device = [name for name in problem.graph.op_names if device_of[name] == device]
        resident = sum(int(problem.graph.param_bytes[problem.graph.index[name]]) for name in on_device)
        here = [(begin, end, count) for where, begin, end, count in lives if where == device]
        moments = {begin for begin, _, _ in here}
        live = [sum(count for begin, end, count in here if begin <= t < end) for t in moments]
        peak[device] = resident * problem.param_multiplier + max(live, default=0)
    return peak


def random_graph(rng: np.random.Generator, num_ops: int, mode: str = "training") -> ComputationGraph:
    """A graph with what breaks simulators: ties, free ops, empty tensors, several outputs, shuffled names."""
    names = [f"op{i}" for i in rng.permutation(num_ops)]
    equal_costs, reach = rng.random() < 0.3, int(rng.integers(2, 30))
    ops: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        time = 100.0 if equal_costs else float(rng.integers(1, 50)) * (10.0 if rng.random() < 0.5 else 1.37)
        time = 0.0 if rng.random() < 0.15 else time
        sizes = rng.choice([0, 7600, 76000, 1_000_003], size=int(rng.choice([1, 1, 1, 2, 4]))).tolist()
        inputs = []
        for j in rng.integers(max(0, i - reach), max(i, 1), size=int(rng.integers(0, 4))).tolist() if i else []:
            inputs.append([names[j], int(rng.integers(len(ops[j]["outputs"])))])
            if rng.random() < 0.2:  # another output of the same producer, or the same one twice
                inputs.append([names[j], int(rng.integers(len(ops[j]["outputs"])))])
        param_bytes = int(rng.integers(0, 10_000))
        record = {"name": name, "outputs": sizes, "inputs": inputs, "param_bytes": param_bytes, "time_us": {"*": time}}
        if rng.random() < 0.2:
            record["time_us"]["slow"] = time * 3.3
        ops.append(record)
    # Producers may stand after their consumers in a file: op order is not always topological.
    order = rng.permutation(num_ops) if rng.random() < 0.3 else np.arange(num_ops)
    return ComputationGraph.from_ops("random", [ops[i] for i in order], mode)


def random_cluster(rng: np.random.Generator, transfers: str, link: str, memory: int = 10**9) -> Cluster:
    """2-12 devices ('/gpu:10' sorts before '/gpu:2'), sometimes all alike, sometimes all different."""
    size = int(rng.choice([1, 2, 3, 4, 8, 12], p=[0.05, 0.25, 0.2, 0.3, 0.1, 0.1]))
    alike = rng.random() < 0.4
    numbers = rng.permutation(np.arange(size) + 5)
    devices = [
        Device(f"/gpu:{n}", "fast" if alike else str(rng.choice(["fast", "slow"])), 1e12, 1e11, memory, overhead)
        for n, overhead in zip(numbers, [5.7] * size if alike else rng.choice([0.0, 3.1, 5.7], size), strict=True)
    ]
    bandwidth = np.full((size, size), 7600.0) if alike else rng.choice([7600.0, 12000.0, 333.3], (size, size))
    latency = np.zeros((size, size)) if alike else rng.choice([0.0, 10.0, 12.3], (size, size))
    return Cluster("random", tuple(devices), bandwidth, latency, transfers, link, float(rng.choice([0.0, 25.0])))


def random_problem(rng: np.random.Generator, transfers: str, link: str) -> tuple[PlacementProblem, np.ndarray]:
    """A problem of 1-400 ops, mostly small, and a placement: random, or in runs of ops."""
    num_ops = int(rng.choice([rng.integers(1, 40), rng.integers(40, 120), rng.integers(120, 400)], p=[0.8, 0.17, 0.03]))
    graph = random_graph(rng, num_ops, str(rng.choice(["training", "inference"])))
    problem = PlacementProblem(graph, random_cluster(rng, transfers, link))
    devices = rng.integers(0, problem.num_devices, num_ops)
    run = int(rng.choice([1, 1, 4, 10]))
    return problem, np.repeat(devices, run)[:num_ops]
