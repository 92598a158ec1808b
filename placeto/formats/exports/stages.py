"""Contiguous pipeline stages, as `torch.distributed.pipelining` takes them: the modules at which a model is split.

Units (`units.py`) in program order are divided into as many runs as there are devices, so that the longest stage,
forward and backward, takes the least time: a pipeline is as fast as its slowest stage.

Legend: U units, D devices, S stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from placeto.formats.exports.units import ExportError, module_units
from placeto.simulator.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Stages:
    """Which modules each stage has."""

    modules: tuple[tuple[str, ...], ...]  # (S,) module paths of each stage
    stage_us: np.ndarray  # (S,) float64, what each stage computes for, in a step
    agreement: float  # share of the time that the placement divides in the same way, whatever it calls the devices

    @property
    def split_points(self) -> tuple[str, ...]:
        """The modules at whose beginning the model is split."""
        return tuple(modules[0] for modules in self.modules[1:])

    def described(self, device_names: tuple[str, ...]) -> dict[str, object]:
        """For JSON."""
        stages = [
            {"device": device_names[number], "us": float(us), "modules": list(modules)}
            for number, (modules, us) in enumerate(zip(self.modules, self.stage_us, strict=True))
        ]
        return {"split_points": list(self.split_points), "stages": stages}


def pipeline_stages(schedule: Schedule, count: int | None = None, whole: tuple[str, ...] = ()) -> Stages:
    """The stages of a model.

    Args:
        schedule: of the placement; stage s runs on device s.
        count: S; as many as there are devices if not given.
        whole: paths of modules that must not be divided, beside the blocks.

    Raises:
        ExportError: the graph has no modules, fewer units than stages, or more stages than devices.
    """
    problem = schedule.problem
    graph, devices = problem.graph, problem.num_devices
    count = devices if count is None else count
    units = module_units(graph, whole)
    names, unit = _in_program_order(units.names, units.unit)
    if not 1 <= count <= min(devices, len(names)):
        raise ExportError(f"{graph.name}: {count} stages of {len(names)} modules on {devices} devices can't be")
    own = unit >= 0
    work = np.zeros((len(names), devices))
    np.add.at(work, unit[own], problem.op_time[own])
    ends = _balanced(work, count)
    stage = np.repeat(np.arange(count), np.diff([0, *ends]))
    time = schedule.finish_us - schedule.start_us
    shared = np.zeros((count, devices))
    np.add.at(shared, (stage[unit[own]], schedule.placement[own]), time[own])
    matched = shared[linear_sum_assignment(shared, maximize=True)].sum()
    first = [0, *ends[:-1]]
    return Stages(
        tuple(tuple(names[a:b]) for a, b in zip(first, ends, strict=True)),
        np.array([work[a:b, s].sum() for s, (a, b) in enumerate(zip(first, ends, strict=True))]),
        float(matched / (shared.sum() or 1.0)),
    )


def _in_program_order(names: tuple[str, ...], unit: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Units by their first op as captured; (N,) their numbers."""
    first = np.array([np.flatnonzero(unit == number)[0] for number in range(len(names))])
    order = np.argsort(first, kind="stable")
    place = np.empty(len(names), np.int64)
    place[order] = np.arange(len(names))
    return [names[number] for number in order], np.where(unit >= 0, place[unit], -1)


def _balanced(work: np.ndarray, count: int) -> list[int]:
    """Where each run of rows of work (U, D) ends, run s on device s, with the least longest run."""
    units = len(work)
    total = np.vstack([np.zeros(work.shape[1]), np.cumsum(work, 0)])
    best = np.full((count + 1, units + 1), np.inf)
    back = np.zeros((count + 1, units + 1), np.int64)
    best[0, 0] = 0.0
    for stage in range(1, count + 1):
        for end in range(stage, units - (count - stage) + 1):
            begins = np.arange(stage - 1, end)
            longest = np.maximum(best[stage - 1, begins], total[end, stage - 1] - total[begins, stage - 1])
            pick = int(longest.argmin())
            best[stage, end], back[stage, end] = longest[pick], begins[pick]
    ends = [units]
    for stage in range(count, 1, -1):
        ends.append(int(back[stage, ends[-1]]))
    return ends[::-1]
