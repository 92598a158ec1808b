"""Contiguous pipeline stages, as `torch.distributed.pipelining` takes them: the modules at which a model is split.

The layers of a model in program order are divided into as many stages as there are devices. The longest stage, forward
and backward, takes as little time as possible, because a pipeline is as fast as its slowest stage. The stages are some
that torch can run by a schedule for one stage a device, see `placeto.problem.step.borders`. They don't divide blocks.

Legend: N ops, L layers, P parts between two places where the model can be split, D devices, S stages.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto.formats.exports.errors import ExportError
from placeto.formats.exports.torch_pipeline import modules_of_stages
from placeto.problem.graph.module_paths import unit_of
from placeto.problem.step.borders import BEGINNING, several_programs
from placeto.problem.step.layers import Layers, layers
from placeto.problem.step.whole_modules import paths_of
from placeto.simulator.schedule import Schedule


class ExportWarning(UserWarning):
    """An export that is less than was asked for; the message says why."""


@dataclass(frozen=True, eq=False)
class Stages:
    """The modules and the time of each stage."""

    split_points: tuple[str, ...]  # (S-1,) the modules at whose beginning the model is split
    modules: tuple[tuple[str, ...], ...]  # (S,) the outermost modules that run in each stage alone
    devices: tuple[int, ...]  # (S,) the device of each stage
    stage_us: np.ndarray  # (S,) float64, for how long each stage computes in a step
    agreement: float  # share of the ops' time that the placement spends on the device of their stage

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
        ExportError: the graph has no modules; `count` is above the number of devices or of modules, or torch can't run
            so many stages; or no count is given, and torch can't split the model at all.
    """
    problem = schedule.problem
    graph, devices = problem.graph, problem.num_devices
    paths_of(graph, whole)  # which refuses graphs without modules
    if why := several_programs(graph):
        raise ExportError(f"{graph.name}: {why}")
    found = layers(problem, False, True)
    splits = _between_modules(found, whole)
    limit = min(devices, len(splits) + 1)
    wanted = limit if count is None else count
    if not 1 <= wanted <= limit:
        told = f"{len(splits) + 1} modules on {devices} devices make no {wanted} stages"
        raise ExportError(f"{graph.name}: {told}: ask for 1 to {limit} of them")
    border = found.borders.border
    legal = [layer for layer in splits if not border[layer - 1].why]
    part, parts = found.stage(legal), len(legal) + 1
    time = schedule.finish_us - schedule.start_us
    placed = np.zeros((devices, parts))
    np.add.at(placed, (schedule.placement, part), time)
    used = placed.sum(axis=1)
    middle = placed @ np.arange(parts) / np.where(used > 0.0, used, 1.0)  # of the parts on each device
    order = np.argsort(np.where(used > 0.0, middle, np.inf), kind="stable")
    work = np.zeros((parts, devices))
    np.add.at(work, part, problem.op_time[:, order])
    runs, why = found.borders.stages(legal)
    number, ends = next((n, ends) for n in range(min(wanted, parts), 0, -1) if (ends := _balanced(work, n, runs)))
    if number < wanted:
        reasons = [
            f"at {unit_of(edge.module)}, {edge.why}" for edge in (border[layer - 1] for layer in splits) if edge.why
        ]
        reason, *others = dict.fromkeys([*reasons, why] if why else reasons)
        more = f"; and {len(others)} more reason{'s' * (len(others) > 1)}" if others else ""
        most = f"can run {number} stage{'s' * (number > 1)}, not {wanted}"
        told = f"{graph.name}: torch.distributed.pipelining {most}: {reason}{more}"
        if count is not None or number == 1:
            raise ExportError(told)
        warnings.warn(told, ExportWarning, stacklevel=2)
    first = [0, *ends[:-1]]
    borders = [legal[begin - 1] for begin in first[1:]]
    agreed = sum(placed[order[stage], a:b].sum() for stage, (a, b) in enumerate(zip(first, ends, strict=True)))
    return Stages(
        tuple(unit_of(border[layer - 1].module) for layer in borders),
        modules_of_stages(graph, found.borders.program, found.stage(borders)),
        tuple(order[:number].tolist()),
        np.array([work[a:b, stage].sum() for stage, (a, b) in enumerate(zip(first, ends, strict=True))]),
        float(agreed / (used.sum() or 1.0)),
    )


def _between_modules(found: Layers, whole: Sequence[str]) -> list[int]:
    """Return the layers that begin with a module, and neither within a block nor within a module of `whole`."""
    program, spans = found.borders.program, dict[str, list[int]]()
    for place, op in enumerate(program.tolist()):
        unit = unit_of(found.graph.modules[op], whole)
        if unit in whole or unit.rpartition(".")[2].isdigit():
            spans.setdefault(unit, []).append(place)
    within = np.zeros(len(program) + 1, bool)
    for places in spans.values():
        within[places[0] + 1 : places[-1] + 1] = True
    begins = [
        border.module and border.side == BEGINNING and not within[border.place] for border in found.borders.border
    ]
    return [layer for layer, begin in enumerate(begins, start=1) if begin]


def _balanced(work: np.ndarray, count: int, legal: np.ndarray) -> list[int] | None:
    """Divide the parts into runs, run s on device s, so that the longest run takes the least time.

    Args:
        work: (P, D) the time of each part on each device.
        count: the number of runs.
        legal: (P+1, P+1) bool, whether the parts a to b - 1 may be a run, at [a, b].

    Returns:
        For each run, the number of its last part plus 1; None if no division is legal.
    """
    parts = len(work)
    total = np.vstack([np.zeros(work.shape[1]), np.cumsum(work, 0)])
    best = np.full((count + 1, parts + 1), np.inf)
    back = np.zeros((count + 1, parts + 1), np.int64)
    best[0, 0] = 0.0
    for stage in range(1, count + 1):
        for end in range(stage, parts - (count - stage) + 1):
            begins = np.arange(stage - 1, end)
            longest = np.maximum(best[stage - 1, begins], total[end, stage - 1] - total[begins, stage - 1])
            longest[~legal[begins, end]] = np.inf
            pick = int(longest.argmin())
            best[stage, end], back[stage, end] = longest[pick], begins[pick]
    if best[count, parts] == np.inf:
        return None
    ends = [parts]
    for stage in range(count, 1, -1):
        ends.append(int(back[stage, ends[-1]]))
    return ends[::-1]
