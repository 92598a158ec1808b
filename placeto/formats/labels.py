"""What ops share a colour in pictures of schedules: modules, or types where there are no modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

_MAX_COLORS = 30
_NOTABLE = 0.1  # share of the time above which a label is split, if colours are left
_LARGE = 0.4  # share above which it is split all the same, and neighbours share a colour
OTHER = "other"


def color_labels(schedule: Schedule) -> list[str]:
    """Label of each op: the head of its module's path, or its type where there are no modules.

    Heads that take much of the time are split into the modules inside them. Where there are more modules than
    colours, neighbours share one; of types the rare ones are "other".
    """
    graph = schedule.problem.graph
    time = schedule.finish_us - schedule.start_us
    if not any(graph.modules):
        return _frequent(list(graph.op_types), time)
    paths = [module.split(".") for module in graph.modules]
    labels, deepest = [path[0] or OTHER for path in paths], max(map(len, paths))
    whole: set[str] = {OTHER}  # was split, and is what is left, or would be into too many
    while True:
        total = {label: us for label, us in _total(labels, time).items() if label not in whole}
        largest = max(total, key=lambda label: total[label], default=OTHER)
        if total.get(largest, 0.0) <= _NOTABLE * time.sum():
            return _neighbours(labels)
        parts, depth = {largest}, len(largest.split("."))
        while len(parts) == 1 and depth < deepest:
            depth += 1
            split = [".".join(p[:depth]) if old == largest else old for p, old in zip(paths, labels, strict=True)]
            parts = {new for old, new in zip(labels, split, strict=True) if old == largest}
        if len(parts) == 1:
            whole.add(largest)
            continue
        if len(set(split)) <= _MAX_COLORS or total[largest] >= _LARGE * time.sum():
            labels = split
        whole.add(largest)


def captions(label: str, labels: Iterable[str]) -> list[str]:
    """What may stand for a label in a small box, the longest first: its ends that tell it from all other labels.

    >>> captions("encoder.layers.0", ["encoder.layers.0", "encoder.layers.1", "encoder.head"])
    ['encoder.layers.0', 'layers.0']
    >>> captions("encoder.layers.0", ["encoder.layers.0", "decoder.layers.0"])
    ['encoder.layers.0']
    """
    ends = (label.split(".", cut)[-1] for cut in range(label.count(".") + 1))
    others = [f".{other}" for other in set(labels) - {label}]
    return [end for end in ends if not end.isdigit() and not any(other.endswith(f".{end}") for other in others)]


def _neighbours(labels: list[str]) -> list[str]:
    """The labels, or where there are too many, a common one for neighbours in the order of the ops."""
    names = list(dict.fromkeys(label for label in labels if label != OTHER))
    if len(names) <= _MAX_COLORS:
        return labels
    shared = {OTHER: OTHER}
    for part in np.array_split(np.array(names, object), _MAX_COLORS):
        shared |= dict.fromkeys(part, f"{part[0]} - {part[-1].rpartition('.')[2]}" if len(part) > 1 else part[0])
    return [shared[label] for label in labels]


def _total(labels: list[str], time: np.ndarray) -> dict[str, float]:
    """Time that goes to each label."""
    total: dict[str, float] = {}
    for label, us in zip(labels, time.tolist(), strict=True):
        total[label] = total.get(label, 0.0) + us
    return total


def _frequent(labels: list[str], time: np.ndarray) -> list[str]:
    """Keep the labels that most time goes to, as many as there are colors."""
    total = _total(labels, time)
    total.pop(OTHER, None)
    kept = set(sorted(total, key=lambda label: -total[label])[:_MAX_COLORS])
    return [label if label in kept else OTHER for label in labels]
