"""The layers that each device has in a placement, for tools that take a number of layers for each device.

Layers are the modules of one list, such as ``h.0`` to ``h.11``. Of the lists that take at least half of the time of the
forward pass, it is the one with the most modules. What is computed before the layers, such as an embedding, goes to the
first stage. What is computed behind them, such as a norm and a head, goes to the last. A layer goes to the device on
which most of its forward pass runs, and its backward pass goes with it.

Legend: N ops, L layers, S stages, R replicas, M micro-batches, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeto.formats.exports.torch_stages import PLACE, replicas_of
from placeto.formats.exports.units import LOSS, ExportError, in_forward, paths_of
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.labels import NO_MICRO_BATCH, TENSORS
from placeto.problem.graph.module_paths import around, inside
from placeto.simulator.schedule import Schedule, simulate

ALONE = "place with --placer pipeline, without --micro-batches"
"""How to place for a tool that doesn't train."""


@dataclass(frozen=True, eq=False)
class WholeLayers:
    """S stages of contiguous layers on R replicas."""

    modules: tuple[str, ...]  # (L,) in program order
    before: tuple[str, ...]  # the outermost modules that compute before the layers
    behind: tuple[str, ...]  # the outermost modules that compute behind them
    stages: tuple[tuple[int, int], ...]  # (S,) the first layer of each stage, and the one behind its last
    devices: tuple[tuple[int, ...], ...]  # (R, S) where each replica has each stage; a device may have several
    micro_batches: int  # M; 1 if the step has none
    schedule: Schedule  # of the placement with whole layers
    moved: float  # share of the time in ops that whole layers put on another device than the placement

    @property
    def counts(self) -> tuple[int, ...]:
        """(S,) the number of layers of each stage; only the first and the last may have none."""
        return tuple(end - first for first, end in self.stages)

    @property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """(R, P) the devices of each replica, in the order of their first stages."""
        return tuple(tuple(dict.fromkeys(row)) for row in self.devices)


def whole_layers(schedule: Schedule, tool: str, trains: bool = True) -> WholeLayers:
    """Return the layers of each stage in a placement of a training step or an inference.

    Args:
        schedule: the schedule of the placement.
        tool: the name of the tool, for messages.
        trains: whether the tool trains, for messages.

    Raises:
        ExportError: the graph has no list of layers, or micro-batches differ in more than the devices of their stages.
    """
    problem, placement = schedule.problem, schedule.placement
    graph, time = problem.graph, schedule.finish_us - schedule.start_us
    instead = None if trains else ALONE
    paths_of(graph)  # which refuses graphs without modules
    split = bool((graph.micro_batches != NO_MICRO_BATCH).any())
    of = graph.micro_batches if split else np.zeros(graph.num_ops, np.int64)
    forward = in_forward(graph) & (of >= 0) & np.array([module != LOSS for module in graph.modules])
    modules = _layers(graph, forward, time)
    item = _items(graph, forward, of, modules)
    count, last = int(of.max()) + 1, len(modules) + 1
    spent = np.zeros((count, last + 1, problem.num_devices))
    np.add.at(spent, (of[forward], item[forward], placement[forward]), time[forward])
    where = spent.argmax(axis=2)
    for number in (*range(last - 1, -1, -1), *range(1, last + 1)):  # what takes no time goes with its neighbour
        idle = spent[:, number].sum(axis=1) == 0.0
        where[idle, number] = where[idle, number + 1 if number == 0 else number - 1]
    changes = where[:, 1:] != where[:, :-1]
    if not (changes == changes[0]).all():
        micro_batch, border = (int(index) for index in np.argwhere(changes != changes[0])[0])
        raise ExportError(
            f"{graph.name}: micro-batches 0 and {micro_batch} change their device after different layers, such as "
            f"after {_called(modules, border)}; {tool} has the same stages for all: {instead or PLACE}"
        )
    starts = np.append(0, np.flatnonzero(changes[0]) + 1)
    replicas, groups = replicas_of(graph.name, where[:, starts], problem.cluster.device_names, tool, instead)
    whole = _moved(
        schedule, item, of, split, replicas[groups], np.searchsorted(starts, np.arange(last + 1), "right") - 1
    )
    ends = np.append(starts[1:], last + 1)
    own = time * (item >= 0) * (of >= 0)
    order = schedule.order[schedule.order < problem.num_ops]
    return WholeLayers(
        modules,
        _outer(graph, forward, item, 0, modules),
        _outer(graph, forward, item, last, modules),
        tuple(
            (max(first, 1) - 1, min(end, last) - 1) for first, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ),
        tuple(map(tuple, replicas.tolist())),
        count,
        simulate(problem, whole, order=order) if (whole != placement).any() else schedule,
        float(own[whole != placement].sum() / (own.sum() or 1.0)),
    )


def _called(modules: tuple[str, ...], item: int) -> str:
    return modules[item - 1] if item else f"what comes before {modules[0]}"


def _layers(graph: ComputationGraph, forward: np.ndarray, time: np.ndarray) -> tuple[str, ...]:
    """Return the paths of the layers (L,) in program order.

    Raises:
        ExportError: no list takes half of the time of the forward pass.
    """
    lists: dict[str, dict[str, float]] = {}
    for op in np.flatnonzero(forward).tolist():
        parts = graph.modules[op].split(".")
        for depth in (depth for depth, part in enumerate(parts) if part.isdigit()):
            members = lists.setdefault(".".join(parts[:depth]), {})
            layer = ".".join(parts[: depth + 1])
            members[layer] = members.get(layer, 0.0) + float(time[op])
    half = float(time[forward].sum()) / 2
    found = max((list(of) for of in lists.values() if sum(of.values()) >= half), key=len, default=[])
    if len(found) < 2:
        raise ExportError(
            f"{graph.name} has no list of layers in which half of its forward pass is spent: only models of repeated "
            "layers, such as layers.0, layers.1, ..., can be divided by numbers of layers"
        )
    return tuple(found)


def _items(graph: ComputationGraph, forward: np.ndarray, of: np.ndarray, modules: tuple[str, ...]) -> np.ndarray:
    """(N,) int64, the item of each op: 0 before the layers, 1 to L in a layer, L + 1 behind them, -1 if none is known.

    Parameters and ops of the backward pass have the item of their module; the loss is behind the layers.
    """
    number = {path: place for place, path in enumerate(modules, start=1)}
    depth = modules[0].count(".") + 1
    layer = [number.get(".".join(path.split(".")[:depth]), 0) for path in graph.modules]
    item = np.full(graph.num_ops, -1, np.int64)
    for micro_batch in range(int(of.max()) + 1):
        ops = np.flatnonzero(forward & (of == micro_batch)).tolist()  # ops of a captured graph are in program order
        last = max(place for place, op in enumerate(ops) if layer[op])
        now = 0
        for place, op in enumerate(ops):
            now = layer[op] or (now if place < last else len(modules) + 1)
            item[op] = now
    homes: dict[str, set[int]] = {LOSS: {len(modules) + 1}}
    for op in np.flatnonzero(forward).tolist():
        homes.setdefault(graph.modules[op], set()).add(int(item[op]))
    for op in np.flatnonzero(item < 0).tolist():
        home = homes.get(graph.modules[op], set())
        item[op] = layer[op] or (next(iter(home)) if len(home) == 1 else -1)
    return item


def _moved(
    schedule: Schedule, item: np.ndarray, of: np.ndarray, split: bool, devices: np.ndarray, stage: np.ndarray
) -> np.ndarray:
    """Return the placement (N,) with whole layers.

    Args:
        schedule: the schedule of the placement.
        item: (N,) the item of each op, from `_items`.
        of: (N,) the micro-batch of each op.
        split: whether the step is in micro-batches; then a parameter may be on any replica.
        devices: (M, S) the devices of each micro-batch.
        stage: (L+2,) the stage of each item.
    """
    graph, placement = schedule.problem.graph, schedule.placement.copy()
    for op in np.flatnonzero(item >= 0).tolist():
        own = stage[item[op]]
        if (split and of[op] < 0) or graph.op_types[op] in TENSORS:
            if placement[op] not in devices[:, own]:
                placement[op] = devices[0, own]
        else:
            placement[op] = devices[of[op], own]
    return placement


def _outer(
    graph: ComputationGraph, forward: np.ndarray, item: np.ndarray, number: int, modules: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the outermost modules of the ops of item `number`, without modules that contain layers."""
    found: dict[str, None] = {}
    for op in np.flatnonzero(forward & (item == number)).tolist():
        for module in around(graph.modules[op]):
            if not any(inside(layer, module) for layer in modules):
                found.setdefault(module)
                break
    return tuple(found)
