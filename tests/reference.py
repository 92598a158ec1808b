"""A slow, plain simulator written straight from the semantics, to check the fast one against.

Events in a heap, queues in deques, names compared as strings, one delivery per edge. Shares no code with placeto's.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

from placeto.problem.cluster import STATIC_ORDERS, Cluster, Device, SharedLink
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem

DELIVERY, JOIN, LINK, DEVICE = 0, 1, 2, 3


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
    shared_order: dict[str, list[Send]] = field(default_factory=lambda: defaultdict(list))


def reference(problem: PlacementProblem, placement: np.ndarray, given: dict[str, Any] | None = None) -> Result:
    """Simulate one placement (N,); with a given place of each op in the order of dispatch, that is taken."""
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

    place = given or _places(problem)
    listed = {
        device: [op for op in sorted(names, key=place.__getitem__) if device_of[op] == device] for device in devices
    }
    result = Result()
    device_queue: dict[str, list[str]] = {device: [] for device in devices}
    link_queue: dict[Any, list[Send]] = defaultdict(list)
    shared_free: dict[str, float] = defaultdict(float)
    idle_devices = set(devices)
    busy_links: set[Any] = set()
    sends_of_op: dict[str, list[Send]] = {}
    heap: list[tuple[float, int, Any, int]] = []
    pushed = 0

    def push(time: float, kind: int, tie: Any) -> None:
        nonlocal pushed
        pushed += 1
        heapq.heappush(heap, (time, kind, tie, pushed))

    def become_ready(op: str, time: float) -> None:
        device = device_of[op]
        device_queue[device].append(op)
        if device in idle_devices and next_op(device) is not None:
            idle_devices.remove(device)
            push(time, DEVICE, device)

    def next_op(device: str) -> str | None:
        """What the device starts next of what is ready, if anything."""
        ready = device_queue[device]
        if problem.dispatch == "list":
            ahead = [op for op in listed[device] if op not in result.start][:1]
            return ahead[0] if ahead and ahead[0] in ready else None
        if problem.dispatch in STATIC_ORDERS:
            alone = len(set(device_of.values())) == 1  # then any order takes as long: that of the program
            return min(ready, key=names.index if alone else place.__getitem__, default=None)
        return ready[0] if ready else None

    def next_send(link: Any) -> Send | None:
        queue = link_queue[link]
        if problem.dispatch in STATIC_ORDERS:
            queue = sorted(queue, key=lambda send: min(place[child] for child in send.consumers))  # stable
        return queue[0] if queue else None

    def join(send: Send, time: float) -> None:
        """The tensor waits for its link, or is on its way at once."""
        if cluster.link == "free":
            send.start, send.finish = send.ready, send.ready + send.cost
            for child in send.consumers:  # an op's tensors that arrive together do so one by one
                push(send.finish, DELIVERY, (send.tensor[0], result.sends.index(send), child, send.tensor[1]))
            push(send.finish, LINK, None)
            return
        link = send.src if cluster.link == "egress" else (send.src, device_of[send.consumers[0]])
        link_queue[link].append(send)
        if link not in busy_links:
            busy_links.add(link)
            push(time, LINK, link)

    for op in names:
        if waiting[op] == 0:
            become_ready(op, 0.0)

    while heap:
        now, kind, tie, _ = heapq.heappop(heap)
        if kind != DEVICE:
            result.makespan = max(result.makespan, now)
        if kind == DELIVERY:
            child = tie[2]
            waiting[child] -= 1
            if waiting[child] == 0:
                become_ready(child, now)
        elif kind == LINK:
            send = next_send(tie)
            if send is None:
                busy_links.discard(tie)
            elif send.ready > now:
                push(send.ready, LINK, tie)
            else:
                link_queue[tie].remove(send)
                crossed = [
                    link
                    for link in cluster.shared_links
                    if send.src in link.senders and device_of[send.consumers[0]] in link.receivers
                ]
                send.start = max([now, *(shared_free[link.name] for link in crossed)])
                for link in crossed:
                    shared_free[link.name] = send.start + size[send.tensor] / link.bandwidth
                    result.shared_order[link.name].append(send)
                send.finish = send.start + send.cost
                result.link_order[tie].append(send)
                for child in send.consumers:
                    push(send.finish, DELIVERY, (send.tensor[0], 0, child, send.tensor[1]))
                push(send.finish + cluster.link_gap_us, LINK, tie)
        elif kind == JOIN:
            for send in sends_of_op[tie]:
                join(send, now)
        else:
            device = tie
            starting = next_op(device)
            if starting is None:
                idle_devices.add(device)
                continue
            op = starting
            device_queue[device].remove(op)
            finish = now + time_of[op]
            result.start[op], result.finish[op] = now, finish
            result.device_order[device].append(op)
            run_by = cluster.devices[number[device]]
            launched = run_by.launch_us * sum(time_of[each] > 0.0 for each in result.device_order[device])
            free = finish + (0.0 if time_of[op] == 0.0 else run_by.overhead_us)
            result.makespan = max(result.makespan, free)
            push(max(launched, free), DEVICE, device)
            sends: dict[Any, Send] = {}
            for child, output in out_edges[op]:  # in op order of the children
                if device_of[child] == device:
                    push(finish, DELIVERY, (op, 0, child, output))
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
            result.sends += sends.values()
            if problem.dispatch in STATIC_ORDERS and sends:  # they are chosen from when they exist
                sends_of_op[op] = list(sends.values())
                push(finish, JOIN, op)
            else:
                for send in sends.values():
                    join(send, send.ready)

    assert len(result.start) == len(names)
    return result


def _places(problem: PlacementProblem) -> dict[str, int]:
    """Place of each op in the order of dispatch: by falling longest path to the end, or in the order of the program."""
    graph = problem.graph
    consumers = defaultdict(set)
    for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        consumers[src].add(dst)
    if problem.dispatch not in STATIC_ORDERS:
        return {graph.op_names[op]: place for place, op in enumerate(graph.topological_order.tolist())}
    longest: dict[int, float] = {}
    for op in TopologicalSorter({op: consumers[op] for op in range(graph.num_ops)}).static_order():
        times = [
            t + (o if t > 0 else 0.0) for t, o in zip(problem.op_time[op], problem.cluster.overhead_us, strict=True)
        ]
        longest[op] = np.mean(times) + max((longest[child] for child in consumers[op]), default=0.0)
    ranked = sorted(range(graph.num_ops), key=lambda op: (-longest[op], graph.op_names[op]))
    return {graph.op_names[op]: place for place, op in enumerate(ranked)}


def _size(problem: PlacementProblem, tensor: tuple[str, int]) -> int:
    graph = problem.graph
    return int(_outputs(graph, graph.index[tensor[0]])[tensor[1]])


def _outputs(graph: ComputationGraph, op: int) -> np.ndarray:
    return graph.output_bytes[graph.output_ptr[op] : graph.output_ptr[op + 1]]


def reference_memory(problem: PlacementProblem, placement: np.ndarray, result: Result) -> dict[str, int]:
    """Most bytes on each device: lives (device, from, to, bytes) added up at each instant at which one begins."""
    graph, devices = problem.graph, problem.cluster.device_names
    names = graph.op_names
    device_of = {name: devices[d] for name, d in zip(names, placement.tolist(), strict=True)}
    size = {(n, o): int(b) for i, n in enumerate(names) for o, b in enumerate(_outputs(graph, i))}
    consumers = defaultdict(list)
    for s, d, o in zip(graph.edge_src, graph.edge_dst, graph.edge_output, strict=True):
        consumers[names[s], int(o)].append(names[d])
    sends_of = defaultdict(list)
    for send in result.sends:
        sends_of[send.tensor].append(send)
    records = {record["name"]: record for record in graph.to_ops()}
    resident_outputs, resident = {}, {}
    for name, record in records.items():
        default = [0] if record["type"] == "parameter" and record["param_bytes"] else []
        resident_outputs[name] = record.get("resident_outputs", default)
        trained = record.get("trained_bytes", record["param_bytes"] if graph.mode == "training" else 0)
        resident[name] = record["param_bytes"] + 3 * trained  # a gradient and two moments
    views = {name for name, r in records.items() if r["type"][:5] == "aten." and r["flops"] == r["bytes_accessed"] == 0}
    ends: dict[tuple[str, int], float] = {}
    kept: dict[tuple[str, int], int] = {}  # bytes of what has memory of its own
    for (op, output), count in size.items():
        end = result.finish[op]
        for child in consumers[op, output]:
            if device_of[child] == device_of[op]:
                end = max(end, result.finish[child])
        for last, held in records[op].get("held", ()):
            if held == output and device_of[last] == device_of[op]:
                end = max(end, result.finish[last])
        for send in sends_of[op, output]:
            end = max(end, send.finish)
        whole = (op, output)
        while records[whole[0]]["inputs"] and (
            (whole[0] in views and size[whole]) or (records[whole[0]].get("in_place") and whole[1] == 0)
        ):
            whole = tuple(records[whole[0]]["inputs"][0])
        own = whole == (op, output) or device_of[whole[0]] != device_of[op]
        for tensor in {(op, output)} if own else {(op, output), whole}:
            ends[tensor] = max(ends.get(tensor, 0.0), end)
        kept[op, output] = count if own and output not in resident_outputs[op] else 0
    lives = [(device_of[op], result.start[op], ends[op, output], count) for (op, output), count in kept.items()]
    for send in result.sends:
        for device in {device_of[child] for child in send.consumers}:
            end = max(result.finish[child] for child in send.consumers if device_of[child] == device)
            lives.append((device, send.finish, end, size[send.tensor]))
    peak = {}
    for device in problem.cluster.device_names:
        on_device = [name for name in problem.graph.op_names if device_of[name] == device]
        here = [(begin, end, count) for where, begin, end, count in lives if where == device]
        moments = {begin for begin, _, _ in here}
        live = [sum(count for begin, end, count in here if begin <= t < end) for t in moments]
        peak[device] = sum(resident[name] for name in on_device) + max(live, default=0)
    return peak


def reference_slack(problem: PlacementProblem, placement: np.ndarray, result: Result) -> dict[str, float]:
    """How much later each op may end: the makespan less the op's end, less the longest path from there to the end."""
    graph, cluster = problem.graph, problem.cluster
    names = graph.op_names
    time = {name: problem.op_time[i, placement[i]] for i, name in enumerate(names)}
    busy = {name: cluster.overhead_us[placement[i]] if time[name] > 0 else 0.0 for i, name in enumerate(names)}
    # Arcs from an end to a later end, with the least time between the two; sends by number, None = end of the schedule.
    arcs: dict[Any, list[tuple[Any, float]]] = {name: [(None, busy[name])] for name in names}
    for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        if placement[src] == placement[dst]:
            arcs[names[src]].append((names[dst], time[names[dst]]))
    number = {id(send): n for n, send in enumerate(result.sends)}
    gap = 0.0 if cluster.link == "free" else cluster.link_gap_us
    for n, send in enumerate(result.sends):
        arcs[n] = [(None, gap), *((child, time[child]) for child in send.consumers)]
        arcs[send.tensor[0]].append((n, send.cost))
    for order in result.device_order.values():
        for first, second in pairwise(order):
            arcs[first].append((second, busy[first] + time[second]))
    for sends in result.link_order.values():
        for before, after in pairwise(sends):
            arcs[number[id(before)]].append((number[id(after)], gap + after.cost))
    for link in cluster.shared_links:
        for before, after in pairwise(result.shared_order[link.name]):
            passed = _size(problem, before.tensor) / link.bandwidth - before.cost  # from its end on: below 0
            arcs[number[id(before)]].append((number[id(after)], passed + after.cost))
    longest: dict[Any, float] = {None: 0.0}
    backward = TopologicalSorter({node: [to for to, _ in out] for node, out in arcs.items()}).static_order()
    for node in backward:
        if node is not None:
            longest[node] = max(weight + longest[to] for to, weight in arcs[node])
    return {name: result.makespan - longest[name] - result.finish[name] for name in names}


def random_graph(rng: np.random.Generator, num_ops: int, mode: str = "training") -> ComputationGraph:
    """A graph with what breaks simulators: ties, free ops, empty tensors, several outputs, shuffled names."""
    random = Random(int(rng.integers(2**63)))  # many times faster than numpy, number by number
    memory_fields = Random(num_ops)  # of its own, so that the graphs stay as they were
    numbers = random.sample(range(num_ops), num_ops)
    prefix = random.choice(["op", "op", "", "Z/"])
    names = [f"{prefix}{n}" if random.random() < 0.9 else f"a.{n}" for n in numbers]
    equal_costs, reach, free = random.random() < 0.3, random.randrange(2, 30), random.choice([0.0, 0.15, 0.15, 0.6])
    unit = random.choice([(10.0,), (10.0, 1.37), (10.0, 1.37)])
    bytes_of = random.choice([(7600, 76000), (0, 0, 76000), (0, 7600, 76000, 1_000_003)])
    most_inputs = random.choice([1, 3, 3, 6])
    ops: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        time = 100.0 if equal_costs else random.randrange(1, 50) * random.choice(unit)
        time = 0.0 if random.random() < free else time
        sizes = random.choices(bytes_of, k=random.choice([1, 1, 1, 2, 4]))
        inputs = []
        for _ in range(random.randrange(most_inputs + 1) if i else 0):
            j = random.randrange(max(0, i - reach), i)
            inputs.append([names[j], random.randrange(len(ops[j]["outputs"]))])
            if random.random() < 0.2:  # another output of the same producer, or the same one twice
                inputs.append([names[j], random.randrange(len(ops[j]["outputs"]))])
        params = random.randrange(10_000)
        record: dict[str, Any] = {"name": name, "outputs": sizes, "inputs": inputs, "param_bytes": params}
        record["time_us"] = {"*": time} | ({"slow": time * 3.3} if random.random() < 0.2 else {})
        if memory_fields.random() < 0.3:
            record["resident_outputs"] = [o for o in range(len(sizes)) if memory_fields.random() < 0.5]
        if mode == "training" and memory_fields.random() < 0.3:
            record["trained_bytes"] = memory_fields.randrange(params + 1)
        if memory_fields.random() < 0.2:
            record["type"] = "aten.slice"  # without work: a view of its first input
        elif inputs and memory_fields.random() < 0.2:
            record["in_place"] = True
        ops.append(record)
    for record in ops:
        if memory_fields.random() < 0.2:
            record["held"] = [[memory_fields.choice(names), memory_fields.randrange(len(record["outputs"]))]]
    if random.random() < 0.3:  # producers may stand after their consumers in a file: op order is not always topological
        random.shuffle(ops)
    return ComputationGraph.from_ops("random", ops, mode)


def random_cluster(rng: np.random.Generator, transfers: str, link: str, memory: int = 10**9) -> Cluster:
    """1-12 devices ('/gpu:10' sorts before '/gpu:2'), sometimes all alike, sometimes all different.

    Overheads, gaps and latencies of 10 us meet op times and transfers of 10 us: events of all kinds at one instant.
    """
    size = int(rng.choice([1, 2, 3, 4, 8, 12], p=[0.05, 0.25, 0.2, 0.3, 0.1, 0.1]))
    alike = rng.random() < 0.5
    numbers = rng.permutation(np.arange(size) + 5)
    overheads = [float(rng.choice([0.0, 5.7, 10.0]))] * size if alike else rng.choice([0.0, 3.1, 5.7], size).tolist()
    devices = [
        Device(f"/gpu:{n}", "fast" if alike else str(rng.choice(["fast", "slow"])), 1e12, 1e11, memory, overhead)
        for n, overhead in zip(numbers, overheads, strict=True)
    ]
    bandwidth = np.full((size, size), 7600.0) if alike else rng.choice([7600.0, 12000.0, 333.3], (size, size))
    latency = np.full((size, size), rng.choice([0.0, 10.0])) if alike else rng.choice([0.0, 10.0, 12.3], (size, size))
    gap = float(rng.choice([0.0, 10.0, 25.0]))
    return Cluster("random", tuple(devices), bandwidth, latency, transfers, link, gap, "fifo")


def random_shared_links(rng: np.random.Generator, cluster: Cluster) -> tuple[SharedLink, ...]:
    """Up to three, each from some devices to some; as fast as the pairs' links, or slower."""
    names, links = cluster.device_names, []
    for number in range(int(rng.integers(1, 4))):
        sides = [tuple(name for name in names if rng.random() < 0.6) for _ in range(2)]
        if any(sender != receiver for sender in sides[0] for receiver in sides[1]):
            links.append(SharedLink(f"shared {number}", float(rng.choice([333.3, 7600.0, 12000.0])), *sides))
    return tuple(links)


def random_problem(
    rng: np.random.Generator, transfers: str, link: str, dispatch: str = "fifo", shared: bool = False
) -> tuple[PlacementProblem, np.ndarray]:
    """A problem of 1-400 ops, mostly small, and a placement: random, or in runs of ops."""
    num_ops = int(rng.choice([rng.integers(1, 40), rng.integers(40, 120), rng.integers(120, 400)], p=[0.8, 0.17, 0.03]))
    graph = random_graph(rng, num_ops, str(rng.choice(["training", "inference"])))
    cluster = random_cluster(rng, transfers, link)
    if shared:
        cluster = replace(cluster, shared_links=random_shared_links(rng, cluster))
    problem = PlacementProblem(graph, cluster, dispatch=dispatch)
    devices = rng.integers(0, problem.num_devices, num_ops)
    run = int(rng.choice([1, 1, 4, 10]))
    return problem, np.repeat(devices, run)[:num_ops]
