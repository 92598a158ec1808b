"""Contiguous pipeline stages, as `torch.distributed.pipelining` takes them: the modules at which a model is split.

Units (`units.py`) in program order are divided into as many stages as there are devices. The longest stage, forward and
backward, takes as little time as possible, because a pipeline is as fast as its slowest stage. A split is legal
(`splits.py`) if torch can run the stages that it makes.

Legend: N ops, U units, D devices, S stages.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto.formats.exports.splits import find_splits, first_forward
from placeto.formats.exports.units import ExportError, numbered, paths_of
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.module_paths import holders, unit_of
from placeto.simulator.schedule import Schedule

_SHOWN = 2  # reasons in a message


class ExportWarning(UserWarning):
    """An export that is less than was asked for; the message says why."""


@dataclass(frozen=True, eq=False)
class Stages:
    """The modules and the time of each stage."""

    modules: tuple[tuple[str, ...], ...]  # (S,) module paths of each stage
    devices: tuple[int, ...]  # (S,) the device of each stage
    stage_us: np.ndarray  # (S,) float64, for how long each stage computes in a step
    agreement: float  # share of the ops' time that the placement spends on the device of their stage

    @property
    def split_points(self) -> tuple[str, ...]:
        """The modules at whose beginning the model is split."""
        return tuple(modules[0] for modules in self.modules[1:])

    def described(self, device_names: tuple[str, ...]) -> dict[str, object]:
        """Return a table for JSON, with the split points and each stage's device, time in us and modules."""
        stages = [
            {"device": device_names[device], "us": float(us), "modules": list(modules)}
            for device, modules, us in zip(self.devices, self.modules, self.stage_us, strict=True)
        ]
        return {"split_points": list(self.split_points), "stages": stages}


def pipeline_stages(schedule: Schedule, count: int | None = None, whole: Sequence[str] = ()) -> Stages:
    """Divide a model into stages that take equal time, as far as possible.

    Args:
        schedule: the schedule of a placement, which the stages are compared with. Stages run on its devices,
            sorted by the mean place in the program of what they compute; devices that compute nothing come last.
        count: S, the number of stages; if not given, as many as there are devices, or fewer, with an `ExportWarning`,
            if torch can't run so many or modules have to stay together.
        whole: paths of modules that must not be divided, in addition to the blocks.

    Raises:
        ExportError: the graph has no modules; `count` is above the number of devices or of units, or torch can't run so
            many stages; or no count is given, and torch can't run any split because of the model's inputs or outputs.
    """
    problem = schedule.problem
    graph, devices = problem.graph, problem.num_devices
    names, unit = _in_program_order(graph, whole)
    limit = min(devices, len(names))
    wanted = limit if count is None else count
    if not 1 <= wanted <= limit:
        told = f"{len(names)} modules on {devices} devices make no {wanted} stages"
        raise ExportError(f"{graph.name}: {told}: ask for 1 to {limit} of them")
    own = unit >= 0
    time = schedule.finish_us - schedule.start_us
    placed = np.zeros((devices, len(names)))
    np.add.at(placed, (schedule.placement[own], unit[own]), time[own])
    used = placed.sum(axis=1)
    middle = placed @ np.arange(len(names)) / np.where(used > 0.0, used, 1.0)  # of the units on each device
    order = np.argsort(np.where(used > 0.0, middle, np.inf), kind="stable")
    work = np.zeros((len(names), devices))
    np.add.at(work, unit[own], problem.op_time[own][:, order])
    splits = find_splits(graph, names, unit)
    ends = None
    for number in range(wanted, 0, -1):
        ends = _balanced(work, number, splits.legal)
        if ends is not None:
            break
    assert ends is not None  # one stage is always legal
    if number < wanted:
        most = f"torch.distributed.pipelining can run {number} {'stage' if number == 1 else 'stages'}, not {wanted}"
        reasons = splits.why[: splits.at_once] if number == 1 else splits.why
        more = f"; and {len(reasons) - _SHOWN} more reasons" if len(reasons) > _SHOWN else ""
        why = f"{graph.name}: {most}, since {'; '.join(reasons[:_SHOWN])}{more}"
        if count is not None or (number == 1 and splits.refused):
            raise ExportError(why)
        warnings.warn(why, ExportWarning, stacklevel=2)
    first = [0, *ends[:-1]]
    runs = list(zip(first, ends, strict=True))
    agreed = sum(placed[order[stage], a:b].sum() for stage, (a, b) in enumerate(runs))
    return Stages(
        tuple(tuple(names[a:b]) for a, b in runs),
        tuple(order[:number].tolist()),
        np.array([work[a:b, stage].sum() for stage, (a, b) in enumerate(runs)]),
        float(agreed / (used.sum() or 1.0)),
    )


def _in_program_order(graph: ComputationGraph, whole: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the units of the forward pass, by their first ops, and (N,) int64 the unit of each op; -1 for no unit."""
    of_path = {path: unit_of(path, whole) for path in paths_of(graph, whole)}
    found = set(of_path.values())
    outer = found & holders(found)
    names, unit = numbered(graph, {path: name for path, name in of_path.items() if name not in outer})
    first: dict[int, int] = {}
    for op in np.flatnonzero(first_forward(graph) & (unit >= 0)).tolist():
        first.setdefault(int(unit[op]), op)
    place = np.full(len(names) + 1, -1)
    place[list(first)] = np.arange(len(first))
    return [names[number] for number in first], place[unit]


def _balanced(work: np.ndarray, count: int, legal: np.ndarray | None = None) -> list[int] | None:
    """Divide the units into runs, run s on device s, so that the longest run takes the least time.

    Args:
        work: (U, D) the time of each unit on each device.
        count: the number of runs.
        legal: (U+1, U+1) bool, whether the units a to b - 1 may be a run, at [a, b]; all may if not given.

    Returns:
        For each run, the number of its last unit plus 1; None if no division is legal.
    """
    units = len(work)
    total = np.vstack([np.zeros(work.shape[1]), np.cumsum(work, 0)])
    best = np.full((count + 1, units + 1), np.inf)
    back = np.zeros((count + 1, units + 1), np.int64)
    best[0, 0] = 0.0
    for stage in range(1, count + 1):
        for end in range(stage, units - (count - stage) + 1):
            begins = np.arange(stage - 1, end)
            longest = np.maximum(best[stage - 1, begins], total[end, stage - 1] - total[begins, stage - 1])
            if legal is not None:
                longest[~legal[begins, end]] = np.inf
            pick = int(longest.argmin())
            best[stage, end], back[stage, end] = longest[pick], begins[pick]
    if best[count, units] == np.inf:
        return None
    ends = [units]
    for stage in range(count, 1, -1):
        ends.append(int(back[stage, ends[-1]]))
    return ends[::-1]
