"""The paragraphs of a report: what was placed where, how fast it is, and what takes the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeto.formats.advice import data_parallel_advice
from placeto.formats.op_labels import color_labels
from placeto.problem.units import format_bytes, format_us
from placeto.simulator.readings.critical_path import COMPUTE, DEVICE, IDLE, LAUNCH, LINK, TRANSFER
from placeto.simulator.single_device import best_single
from placeto.simulator.tool_steps.data_parallel import data_parallel

if TYPE_CHECKING:
    from placeto.simulator.readings.critical_path import CriticalPath
    from placeto.simulator.schedule import Schedule

INSTEAD = "Instead of placing"
"""The heading of the paragraph on data parallelism."""
_MOST_DEVICES, _MOST_LABELS = 4, 3
_VERDICTS = {
    COMPUTE: "Ops that need each other's results take the largest part: faster devices would help. More devices would "
    "not shorten the longest chain of ops, which takes {chain} of the step",
    DEVICE: "Waiting for busy devices takes the largest part: more devices would help, or less work on {busiest}",
    TRANSFER: "Transfers take the largest part: faster links would help, or fewer and smaller tensors between devices",
    LAUNCH: "Launching many short ops takes the largest part: larger batches, fused ops or captured graphs would help",
}


def summary(schedule: Schedule, path: CriticalPath, title: str, placer: str) -> list[tuple[str, str]]:
    """Return the paragraphs, each as its heading and its text.

    Args:
        schedule: the schedule of the placement.
        path: the critical path of the schedule.
        title: the name of the model.
        placer: the name of the placer; "" if it isn't known.
    """
    return [
        ("Result", _result(schedule, title, placer)),
        ("What is where", _where(schedule)),
        ("What takes the time", _bounds(schedule, path)),
        ("Memory", _memory(schedule)),
        (INSTEAD, _instead(schedule)),
    ]


def _result(schedule: Schedule, title: str, placer: str) -> str:
    problem, cluster = schedule.problem, schedule.problem.cluster
    used, took = len(np.unique(schedule.placement)), format_us(schedule.makespan_us)
    where = f"all {used}" if used == cluster.num_devices else f"{used} of the {cluster.num_devices}"
    if cluster.num_devices == 1:
        where = "the one"
    text = f"{title} ({problem.num_ops:,} ops, {problem.graph.mode}) is placed on {where} "
    text += f"device{'s' * (cluster.num_devices > 1)} of {cluster.name}{f' by {placer}' if placer else ''}. "
    text += f"A step takes {took} in the simulator"
    single = best_single(problem)
    if single is None:
        text += f". No single device holds the model; one that did would take {format_us(problem.single_device_us)}"
        text += f", {problem.single_device_us / (schedule.makespan_us or 1.0):.2f} times as long. "
    else:
        name = cluster.device_names[int(single.placement[0])]
        speed = single.makespan_us / (schedule.makespan_us or 1.0)
        alike = " in the same number of micro-batches" if (problem.graph.micro_batches > 0).any() else ""
        if used > 1:
            text += f", {speed:.2f} times as fast as {name} alone{alike} ({format_us(single.makespan_us)})"
        text += ". "
    at_once = schedule.busy_us.sum() / (schedule.makespan_us or 1.0)
    text += f"On average {at_once:.2f} devices are busy at the same time"
    sizes = problem.graph.output_bytes[schedule.send_tensor]
    if schedule.num_sends:
        tensors = "one tensor is" if schedule.num_sends == 1 else f"{schedule.num_sends:,} tensors are"
        text += f". For this, {tensors} sent, {format_bytes(int(sizes.sum()))} in all"
    return f"{text}."


def _where(schedule: Schedule) -> str:
    """Return a sentence for each device, or for more than a few devices one that names their table."""
    names, work = schedule.problem.cluster.device_names, work_of_devices(schedule)
    if len(work) > _MOST_DEVICES:
        return f"The table of devices below says what each of the {len(work)} devices computes."
    told = (f"{names[device]} computes {share} of the work, most of it in {parts}" for device, (share, parts) in work)
    return ". ".join(told) + "."


def work_of_devices(schedule: Schedule) -> list[tuple[int, tuple[str, str]]]:
    """Return each device that is used, with its share of the work, and the labels that take most of its time."""
    labels, time = np.array(color_labels(schedule), object), schedule.finish_us - schedule.start_us
    work = []
    for device in np.unique(schedule.placement).tolist():
        own = schedule.placement == device
        total = {label: float(time[own & (labels == label)].sum()) for label in dict.fromkeys(labels[own])}
        whole = sum(total.values()) or 1.0
        first = sorted(total, key=lambda label: -total[label])[:_MOST_LABELS]
        shown = [label for label in first if total[label] >= 0.01 * whole] or first[:1]
        parts = ", ".join(f"{label} ({_percent(total[label] / whole)})" for label in shown)
        share = whole / (time.sum() or 1.0) if any(total.values()) else 0.0
        work.append((device, (_percent(share), parts)))
    return work


def _bounds(schedule: Schedule, path: CriticalPath) -> str:
    problem, names, shares = schedule.problem, schedule.problem.cluster.device_names, path.shares
    busiest = int(schedule.busy_us.argmax())
    busy = schedule.busy_us[busiest] / (schedule.makespan_us or 1.0)
    kinds = (
        (COMPUTE, "computing what the next op or transfer needs"),
        (DEVICE, "waiting for a device that is busy with other ops"),
        (TRANSFER, "transfers"),
        (LINK, "waiting for a link that is busy with other tensors"),
        (LAUNCH, "launching ops"),
        (IDLE, "idle"),
    )
    parts = [f"{_percent(shares[part])} is {phrase}" for part, phrase in kinds if shares[part] >= 0.005]
    weights = {
        COMPUTE: shares[COMPUTE],
        DEVICE: shares[DEVICE],
        TRANSFER: shares[TRANSFER] + shares[LINK],
        LAUNCH: shares[LAUNCH],
    }
    chain = _percent(problem.longest_path_us / (schedule.makespan_us or 1.0))
    verdict = _VERDICTS[max(weights, key=lambda part: weights[part])].format(busiest=names[busiest], chain=chain)
    text = f"Of the critical path, from the first op to the end, {', '.join(parts) or 'nothing'}. {verdict}. "
    text += f"The busiest device, {names[busiest]}, is busy for {_percent(busy)} of the step"
    if schedule.num_sends:
        (src, dst), (_, _, us) = max(sends_by_pair(schedule).items(), key=lambda item: item[1][2])
        share = us / (schedule.makespan_us or 1.0)
        text += (
            f"; from {names[src]} to {names[dst] if dst >= 0 else 'all'} a tensor is on its way for "
            f"{_percent(share)} of it"
        )
    bound = problem.lower_bound_us
    times = schedule.makespan_us / bound if bound else 1.0
    text += f". No placement on {problem.cluster.name} takes less than {format_us(bound)}; this one takes {times:.2f} "
    return f"{text}times that."


def sends_by_pair(schedule: Schedule) -> dict[tuple[int, int], tuple[float, float, float]]:
    """Sender and receiver (-1: all) -> how many tensors are sent, their bytes, and their microseconds on the way."""
    ends, pair = np.unique([schedule.send_src, schedule.send_dst], axis=1, return_inverse=True)
    sizes = schedule.problem.graph.output_bytes[schedule.send_tensor]
    amounts = (np.ones(schedule.num_sends), sizes, schedule.send_finish_us - schedule.send_start_us)
    sums = [np.bincount(pair.ravel(), amount).tolist() for amount in amounts]
    return dict(zip(zip(*ends.tolist(), strict=True), zip(*sums, strict=True), strict=True))


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _memory(schedule: Schedule) -> str:
    cluster, peak = schedule.problem.cluster, schedule.peak_memory
    over = np.flatnonzero(peak > cluster.memory)
    fullest = int((peak / cluster.memory).argmax())
    held = f"{format_bytes(int(peak[fullest]))} of {format_bytes(int(cluster.memory[fullest]))}"
    text = f"The fullest device, {cluster.device_names[fullest]}, holds {held} at its peak"
    if len(over):
        missing = ", ".join(
            f"{format_bytes(int((peak - cluster.memory)[d]))} on {cluster.device_names[d]}" for d in over
        )
        return f"It does not fit: {missing} too much. {text}."
    return f"It fits. {text}."


def _instead(schedule: Schedule) -> str:
    return data_parallel_advice(schedule.problem, schedule.makespan_us, data_parallel(schedule.problem))
