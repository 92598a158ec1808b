"""The tree of modules, each with its share of the time and the devices that it is on.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

_MOST_CHILDREN = 40
_MOST_NODES = 3000
_DEEPEST = 24
UNNAMED = "(no module)"


@dataclass
class Module:
    """A module and those inside it."""

    name: str  # the end of its path, below its parent
    ops: int
    share: float  # of the time of all ops
    parameters: int  # bytes of its parameters
    devices: list[tuple[str, float]]  # the largest share first: of the module's time, or of its ops if they take none
    children: list[Module] = field(default_factory=list)
    left_out: int = 0  # smaller modules inside it that are not among `children`


def module_tree(schedule: Schedule) -> Module:
    """Return the whole graph as a module; a module with only one child is joined with this child."""
    graph, names = schedule.problem.graph, schedule.problem.cluster.device_names
    time = schedule.finish_us - schedule.start_us
    whole = float(time.sum()) or 1.0
    nodes_left = _MOST_NODES

    def build(name: str, ops: np.ndarray, depth: int) -> Module:
        nonlocal nodes_left
        nodes_left -= 1
        weights = time[ops] if time[ops].any() else None
        shares = np.bincount(schedule.placement[ops], weights, len(names))
        order = [int(device) for device in np.argsort(-shares, kind="stable") if shares[device] > 0]
        module = Module(
            name=name,
            ops=len(ops),
            share=float(time[ops].sum()) / whole,
            parameters=int(graph.param_bytes[ops].sum()),
            devices=[(names[device], float(shares[device] / shares.sum())) for device in order],
        )
        inside = _split(paths, ops, depth)
        while depth and len(inside) == 1 and "" not in inside:
            ((part, ops),) = inside.items()
            module.name, depth = f"{module.name}.{part}", depth + 1
            inside = _split(paths, ops, depth)
        inside.pop("", None)  # what the module computes by itself
        largest = sorted(inside, key=lambda part: -float(time[inside[part]].sum()))
        kept = set(largest[: max(0, min(_MOST_CHILDREN, nodes_left))])
        module.children = [build(part, inside[part], depth + 1) for part in inside if part in kept]
        module.left_out = len(inside) - len(kept)
        return module

    paths = [module.split(".", _DEEPEST) if module else [UNNAMED] for module in graph.modules]
    return build(graph.name, np.arange(graph.num_ops), 0)


def _split(paths: Sequence[Sequence[str]], ops: np.ndarray, depth: int) -> dict[str, np.ndarray]:
    """Part of the module's path at `depth` -> the ops with this part; "" -> the ops whose paths end before."""
    parts: dict[str, list[int]] = {}
    for op in ops.tolist():
        parts.setdefault(paths[op][depth] if depth < len(paths[op]) else "", []).append(op)
    return {part: np.array(ops_of_part) for part, ops_of_part in parts.items()}
