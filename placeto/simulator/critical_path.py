"""The critical path of a schedule: the steps, one after another, that take as long as the whole.

Legend: N ops, S sends, K steps of the path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeto.problem.cluster import crossings
from placeto.simulator.schedule import Schedule

COMPUTE, TRANSFER, DEVICE, LINK, LAUNCH, IDLE = PARTS = ("compute", "transfer", "device", "link", "launch", "idle")
"""What time on the path goes to.

"compute" and "transfer" are ops and sends whose result the next step needs; "device" and "link" are ops and sends that
the next step does not need, but which kept busy the device or link that it waited for; "launch" is overheads of ops and
gaps of links; "idle" is what none of these explain.
"""


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """Steps in the order of time; `shares` of the makespan add up to 1."""

    steps: np.ndarray  # (K,) int64: op i as i, send s as N + s
    needed: np.ndarray  # (K,) bool: the next step needs its result; else it kept the device or link of the next busy
    took_us: np.ndarray  # (K,) float64, until the next step could begin but for overheads and gaps
    time_us: dict[str, float]  # what of the makespan goes to each of `PARTS`

    @property
    def shares(self) -> dict[str, float]:
        """Of the makespan, by `PARTS`."""
        whole = sum(self.time_us.values()) or 1.0
        return {part: us / whole for part, us in self.time_us.items()}


def critical_path(schedule: Schedule) -> CriticalPath:
    """Walk back from the end of a schedule: what each step waited for last, until the beginning.

    Where a step waited for its input and for its device until the same time, the input counts.
    """
    problem, count = schedule.problem, schedule.problem.num_ops
    cluster, graph = problem.cluster, problem.graph
    start = np.concatenate([schedule.start_us, schedule.send_start_us])
    finish = np.concatenate([schedule.finish_us, schedule.send_finish_us])
    overhead = np.where(schedule.finish_us > schedule.start_us, cluster.overhead_us[schedule.placement], 0.0)
    free = finish + np.append(overhead, np.full(schedule.num_sends, cluster.link_gap_us))
    before = _before(schedule, free)
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
            # what comes from another device than its producer's is passed on
            return [producer if schedule.placement[producer] == src else sent[tensor, src]]
        here, found = int(schedule.placement[step]), []
        for edge in range(graph.input_ptr[step], graph.input_ptr[step + 1]):
            tensor = int(schedule.edge_tensor[edge])
            producer = int(graph.producer[tensor])
            remote = schedule.placement[producer] != here
            found.append(sent.get((tensor, here), sent.get((tensor, -1), producer)) if remote else producer)
        return found

    time = dict.fromkeys(PARTS, 0.0)
    steps, needed, took = [], [], []
    step, until, wanted = int(free.argmax()), float(schedule.makespan_us), True
    while step >= 0:
        part = (COMPUTE if wanted else DEVICE) if step < count else (TRANSFER if wanted else LINK)
        ended = min(until, float(finish[step]))
        time[part] += ended - start[step]
        launched = min(until, float(free[step]))
        time[LAUNCH] += max(0.0, launched - ended)
        time[IDLE] += until - max(launched, ended)
        steps.append(step)
        needed.append(wanted)
        took.append(ended - float(start[step]))
        until = float(start[step])
        # the latest of all that it waited for; at equal times an input, then what took the longest
        given = inputs(step)
        causes = [(float(finish[cause]), True, float(finish[cause] - start[cause]), cause) for cause in given]
        causes += [
            (min(at, until), cause in given, float(finish[cause] - start[cause]), cause) for cause, at in before[step]
        ]
        if not causes or until == 0.0:
            time[IDLE] += until
            break
        _, wanted, _, step = max(causes)
    return CriticalPath(np.array(steps[::-1]), np.array(needed[::-1]), np.array(took[::-1]), time)


def _before(schedule: Schedule, free: np.ndarray) -> list[list[tuple[int, float]]]:
    """What ran before each step on its device, or on the links that it crosses, and when each was idle again."""
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
