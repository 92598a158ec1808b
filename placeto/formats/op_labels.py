"""Labels of ops, which have one colour each in pictures of schedules: stages, or modules, or types of ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

_MAX_COLORS = 30
_NOTABLE = 0.1  # share of the time above which a label is split, if colours are left
_LARGE = 0.4  # share above which a label is split even without colours left: then neighbours share a colour
OTHER = "other"


def color_labels(schedule: Schedule) -> list[str]:
    """Return the label of each op: its stage, the first part of its module's path, or its type.

    It is the stage if the schedule is that of a plan with several stages, and the type if there are no modules.
    A label that takes more than 10 % of the time is split into the modules inside it, as far as colours are left; above
    40 %, it is split in any case. If there are more labels than colours, neighbours get a common label. If there are
    more types than colours, those that take least time are "other".
    """
    graph = schedule.problem.graph
    time = schedule.finish_us - schedule.start_us
    if schedule.plan is not None and 1 < len(schedule.plan.devices) <= _MAX_COLORS:
        stages = schedule.plan.layers(schedule.problem).stage(schedule.plan.borders)
        return [f"stage {stage}" for stage in stages.tolist()]
    if not any(graph.modules):
        return _frequent(list(graph.op_types), time)
    return _neighbours(opened(graph.modules, time, _MAX_COLORS, _NOTABLE, _LARGE))


def opened(modules: Sequence[str], time: np.ndarray, most: int, notable: float = -1.0, large: float = 2.0) -> list[str]:
    """Return the label of each op (N,), the beginning of its module's path; labels with much time are split further.

    Args:
        modules: (N,) path of each op's module.
        time: (N,) us of each op.
        most: number of labels; above it, none is split but those with at least the share `large` of the time.
        notable: share of the time above which a label is split.
        large: share of the time at which a label is split in any case.
    """
    paths = [module.split(".") for module in modules]
    labels, deepest = [path[0] or OTHER for path in paths], max(map(len, paths))
    whole: set[str] = {OTHER}  # not to be split again: already split, can't be, or would give too many
    while total := {label: us for label, us in time_by_label(labels, time).items() if label not in whole}:
        largest = max(total, key=lambda label: total[label])
        if total[largest] <= notable * time.sum():
            break
        parts, depth = {largest}, len(largest.split("."))
        while len(parts) == 1 and depth < deepest:
            depth += 1
            split = [".".join(p[:depth]) if old == largest else old for p, old in zip(paths, labels, strict=True)]
            parts = {new for old, new in zip(labels, split, strict=True) if old == largest}
        if len(parts) > 1 and (len(set(split)) <= most or total[largest] >= large * time.sum()):
            labels = split
        whole.add(largest)
    return labels


def captions(label: str, labels: Iterable[str]) -> list[str]:
    """Return the texts that may stand for a label in a small box, the longest first.

    They are the label and its ends, without those that are only a number, or with which another label ends, too.

    >>> captions("encoder.layers.0", ["encoder.layers.0", "encoder.layers.1", "encoder.head"])
    ['encoder.layers.0', 'layers.0']
    >>> captions("encoder.layers.0", ["encoder.layers.0", "decoder.layers.0"])
    ['encoder.layers.0']
    """
    ends = (label.split(".", cut)[-1] for cut in range(label.count(".") + 1))
    others = [f".{another}" for another in set(labels) - {label}]
    return [end for end in ends if not end.isdigit() and not any(another.endswith(f".{end}") for another in others)]


def _neighbours(labels: list[str]) -> list[str]:
    """Return the labels; if there are too many, those that follow each other in the order of ops get a common one."""
    names = list(dict.fromkeys(label for label in labels if label != OTHER))
    if len(names) <= _MAX_COLORS:
        return labels
    shared = {OTHER: OTHER}
    for part in np.array_split(np.array(names, object), _MAX_COLORS):
        shared |= dict.fromkeys(part, f"{part[0]} - {part[-1].rpartition('.')[2]}" if len(part) > 1 else part[0])
    return [shared[label] for label in labels]


def time_by_label(labels: list[str], time: np.ndarray) -> dict[str, float]:
    """Label -> the time in microseconds that its ops take together."""
    total: dict[str, float] = {}
    for label, us in zip(labels, time.tolist(), strict=True):
        total[label] = total.get(label, 0.0) + us
    return total


def _frequent(labels: list[str], time: np.ndarray) -> list[str]:
    """Keep the labels that take most time, as many as there are colours; all others become "other"."""
    total = time_by_label(labels, time)
    total.pop(OTHER, None)
    kept = set(sorted(total, key=lambda label: -total[label])[:_MAX_COLORS])
    return [label if label in kept else OTHER for label in labels]
