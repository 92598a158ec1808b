"""The critical path of a schedule: a chain of ops and sends that takes as long as the whole step.

Legend: N ops, S sends, K steps of the path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeto.problem.cluster import crossings
from placeto.simulator.schedule import Schedule

COMPUTE, TRANSFER, DEVICE, LINK, LAUNCH, IDLE = PARTS = ("compute", "transfer", "device", "link", "launch", "idle")
"""Parts of the time on the path.

"compute" and "transfer" are ops and sends whose result the next one on the path needs. "device" and "link" are ops and
sends whose result the next one doesn't need, but which kept the device or link busy for which it waited. "launch" is
the overhead of ops and the gap of links. "idle" is the rest.
"""


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The ops and sends of the path, here called steps, in the order of time."""

    steps: np.ndarray  # (K,) int64: op i as i, send s as N + s
    needed: np.ndarray  # (K,) bool: whether the next step needs its result, or else waited for its device or link
    took_us: np.ndarray  # (K,) float64, duration up to its end or the next step's start, without overhead and gap
    time_us: dict[str, float]  # microseconds of each of `PARTS`; their sum is the makespan

    @property
    def shares(self) -> dict[str, float]:
        """Share of the makespan of each of `PARTS`; they add up to 1, or to 0 if the makespan is 0."""
        whole = sum(self.time_us.values()) or 1.0
        return {part: us / whole for part, us in self.time_us.items()}


def critical_path(schedule: Schedule) -> CriticalPath:
    """Find the path from the end of a schedule back to its beginning: before each step comes what it waited for last.

    If a step waited until the same time for an input and for its device, the input counts.
    """
    problem, count = schedule.problem, schedule.problem.num_ops
    cluster, graph = problem.cluster, problem.graph
    start = np.concatenate([schedule.start_us, schedule.send_start_us])
    finish = np.concatenate([schedule.finish_us, schedule.send_finish_us])
    overhead = np.where(schedule.finish_us > schedule.start_us, cluster.overhead_us[schedule.placement], 0.0)
    free = finish + np.append(overhead, np.full(schedule.num_sends, cluster.link_gap_us))
    held = np.maximum(free, np.append(_launched_us(schedule), np.zeros(schedule.num_sends)))
    before = _before(schedule, held)
    sent = {
        (tensor, dst): count + send
        for send, (tensor, dst) in enumerate(
            zip(schedule.send_tensor.tolist(), schedule.send_dst.tolist(), strict=True)
        )
    }

    def inputs(step: int) -> list[int]:
        if step >= count:
            tensor, src = int(schedule.send_tensor[step - count]), int(schedule.send_src[step - count])
            producer = int(graph.producer[tensor])
            # a tensor sent by another device than its producer's was passed on by a relay
            return [producer if schedule.placement[producer] == src else sent[tensor, src]]
        device, steps_read = int(schedule.placement[step]), []
        for edge in range(graph.input_ptr[step], graph.input_ptr[step + 1]):
            tensor = int(schedule.edge_tensor[edge])
            producer = int(graph.producer[tensor])
            remote = schedule.placement[producer] != device
            steps_read.append(sent.get((tensor, device), sent.get((tensor, -1), producer)) if remote else producer)
        return steps_read

    time = dict.fromkeys(PARTS, 0.0)
    steps, by_inputs, took = [], [], []
    step, until, by_input = int(free.argmax()), float(schedule.makespan_us), True
    while step >= 0:
        part = (COMPUTE if by_input else DEVICE) if step < count else (TRANSFER if by_input else LINK)
        ended = min(until, float(finish[step]))
        time[part] += ended - start[step]
        launched = min(until, float(held[step]))
        time[LAUNCH] += max(0.0, launched - ended)
        time[IDLE] += until - max(launched, ended)
        steps.append(step)
        by_inputs.append(by_input)
        took.append(ended - float(start[step]))
        until = float(start[step])
        # the last of all that it waited for; at equal times inputs come first, then the one that took longest
        sources = inputs(step)
        causes = [(float(finish[cause]), True, float(finish[cause] - start[cause]), cause) for cause in sources]
        causes += [
            (min(at, until), cause in sources, float(finish[cause] - start[cause]), cause) for cause, at in before[step]
        ]
        if not causes or until == 0.0:
            time[IDLE] += until
            break
        _, by_input, _, step = max(causes)
    return CriticalPath(np.array(steps[::-1]), np.array(by_inputs[::-1]), np.array(took[::-1]), time)


def _launched_us(schedule: Schedule) -> np.ndarray:
    """(N,) microseconds at which the host has launched the op that its device can start after each op."""
    launched, takes_time = np.zeros(len(schedule.start_us)), schedule.finish_us > schedule.start_us
    for ops, us in zip(schedule.device_order, schedule.problem.cluster.launch_us.tolist(), strict=True):
        launched[ops] = us * np.cumsum(takes_time[ops])
    return launched


def _before(schedule: Schedule, free: np.ndarray) -> list[list[tuple[int, float]]]:
    """Return, for each op and send, the steps before it on its device or links, and when each left these free."""
    cluster, count = schedule.problem.cluster, schedule.problem.num_ops
    sizes = schedule.problem.graph.output_bytes[schedule.send_tensor]
    shared = crossings(cluster)
    last: dict[object, tuple[int, float]] = {}
    before: list[list[tuple[int, float]]] = [[] for _ in range(count + schedule.num_sends)]
    for step in schedule.order.tolist():
        ends: dict[object, float]
        if step < count:
            ends = {int(schedule.placement[step]): float(free[step])}
        else:
            send = step - count
            src, dst = int(schedule.send_src[send]), int(schedule.send_dst[send])
            link = {"egress": ("from", src), "pair": ("from", src, dst)}.get(cluster.link)
            ends = {} if link is None else {link: float(free[step])}
            for number, (crossed, pairs) in enumerate(zip(cluster.shared_links, shared, strict=True)):
                if pairs[src, dst]:
                    through = float(schedule.send_start_us[send] + sizes[send] / crossed.bandwidth)
                    ends["shared", number] = through
        before[step] = [last[what] for what in ends if what in last]
        last |= {what: (step, at) for what, at in ends.items()}
    return before
