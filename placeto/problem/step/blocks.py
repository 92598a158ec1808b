"""The blocks of a model: the modules of one list, such as ``h.0`` to ``h.11``, for tools that count them.

Of the lists that take at least half of the time of the forward pass, it is the one with the most modules. What is
computed before the blocks, such as an embedding, and what is computed behind them, such as a norm and a head, are items
of their own: item 0 comes before the blocks, items 1 to B are the blocks, and item B + 1 comes behind them.

Legend: N ops, B blocks, L layers, P stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.module_paths import around, inside
from placeto.problem.step.forward_pass import before_loss, in_first

_INSIDE = -1


@dataclass(frozen=True, eq=False)
class Blocks:
    """B blocks of a model, and where they stand among its layers."""

    modules: tuple[str, ...]  # (B,) paths, in program order; none if no list takes half of the time
    before: tuple[str, ...]  # the outermost modules that compute before the blocks
    behind: tuple[str, ...]  # the outermost modules that compute behind them
    items: np.ndarray  # (L-1,) int64, last item before each border of the layers; -1 for a border inside an item
    nearest: np.ndarray  # (L-1,) int64, border between two items that has more of this border's item on its side

    def stages(self, borders: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """(P,) the first block of each stage, and the one behind its last; only the first and the last may have none.

        Args:
            borders: first layer of each stage but the first; each begins an item.
        """
        ends = [0, *(int(self.items[first - 1]) + 1 for first in borders), len(self.modules) + 2]
        last = len(self.modules) + 1
        return tuple((max(first, 1) - 1, min(end, last) - 1) for first, end in itertools.pairwise(ends))

    def rounded(self, borders: Sequence[int]) -> tuple[int, ...]:
        """(P-1,) the borders, each moved to the nearest between two items, none before the last; 0 if there is none."""
        return tuple(itertools.accumulate((int(self.nearest[first - 1]) + 1 for first in borders), max))


def find_blocks(graph: ComputationGraph, number: np.ndarray, busy_us: np.ndarray, num_layers: int) -> Blocks:
    """Find the blocks of a model among its layers.

    Args:
        graph: a training step or an inference, captured.
        number: (N,) layer of each op.
        busy_us: (N,) microseconds of each op.
        num_layers: L.
    """
    program = np.flatnonzero(before_loss(graph) & in_first(graph))
    modules = _longest_list(graph, program, busy_us)
    nothing = np.full(num_layers - 1, _INSIDE)
    if not modules:
        return Blocks((), (), (), nothing, nothing)
    item = _items(graph, program, modules)
    time, layer = busy_us[program], number[program]
    last, first = np.full(num_layers, -1), np.full(num_layers, len(modules) + 2)
    np.maximum.at(last, layer[time > 0.0], item[time > 0.0])
    np.minimum.at(first, layer[time > 0.0], item[time > 0.0])
    last, first = np.maximum.accumulate(last)[:-1], np.minimum.accumulate(first[::-1])[::-1][1:]
    items = np.where(last < first, last, _INSIDE)
    between = {int(before): border for border, before in reversed([*enumerate(items.tolist())]) if before != _INSIDE}
    nearest = [
        border if items[border] != _INSIDE else _nearest(border, int(last[border]), between, layer, item, time)
        for border in range(num_layers - 1)
    ]
    before, behind = (_outer(graph, program[item == end], modules) for end in (0, len(modules) + 1))
    return Blocks(modules, before, behind, items, np.array(nearest, np.int64))


def _nearest(
    border: int, cut: int, between: dict[int, int], layer: np.ndarray, item: np.ndarray, time: np.ndarray
) -> int:
    """The border behind the item `cut`, in which a border lies, if more of its time is before the border; else before.

    If the layers have no border there, it is the one at the item's other end; -1 if they have none of the two.
    """
    own = item == cut
    early, whole = time[own & (layer <= border)].sum(), time[own].sum()
    ends = (cut, cut - 1) if 2.0 * early >= whole else (cut - 1, cut)
    return next((between[end] for end in ends if end in between), _INSIDE)


def _longest_list(graph: ComputationGraph, program: np.ndarray, busy_us: np.ndarray) -> tuple[str, ...]:
    lists: dict[str, dict[str, float]] = {}
    for op in program.tolist():
        parts = graph.modules[op].split(".")
        for depth in (depth for depth, part in enumerate(parts) if part.isdigit()):
            members = lists.setdefault(".".join(parts[:depth]), {})
            block = ".".join(parts[: depth + 1])
            members[block] = members.get(block, 0.0) + float(busy_us[op])
    half = float(busy_us[program].sum()) / 2
    longest = max((list(times) for times in lists.values() if sum(times.values()) >= half), key=len, default=[])
    return tuple(longest) if len(longest) > 1 else ()


def _items(graph: ComputationGraph, program: np.ndarray, modules: tuple[str, ...]) -> np.ndarray:
    """(F,) int64, the item of each op of the forward pass."""
    number = {path: place for place, path in enumerate(modules, start=1)}
    depth = modules[0].count(".") + 1
    blocks = [number.get(".".join(graph.modules[op].split(".")[:depth]), 0) for op in program.tolist()]
    last = max(place for place, block in enumerate(blocks) if block)
    items, now = [], 0
    for place, block in enumerate(blocks):
        now = block or (now if place < last else len(modules) + 1)
        items.append(now)
    return np.array(items, np.int64)


def _outer(graph: ComputationGraph, ops: np.ndarray, modules: tuple[str, ...]) -> tuple[str, ...]:
    """The outermost modules of some ops, without modules that contain blocks."""
    outermost: dict[str, None] = {}
    for op in ops.tolist():
        for module in around(graph.modules[op]):
            if not any(inside(block, module) for block in modules):
                outermost.setdefault(module)
                break
    return tuple(outermost)
