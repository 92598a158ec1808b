"""Measure, calibrate, place again: the placement that is fastest when it is really run.

1. The ops of the step are measured, on one device of each kind alone, and transfers are measured.
2. Placers place the step in simulation with these times.
3. The best few placements, and one device, are run in turns.
4. The ops are timed within the fastest of these placements, where they share memory and caches. These times replace the
   earlier ones. Then 2. follows again, until a round gains less than 1 % or time is over.

In the end the best placement, if it isn't that on one device, is run in turns with one device, and taken if it is
faster. Its simulated time is by the costs of the last round, in the order in which it was run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from placeto.problem.costs.profiled import Profiled
from placeto.problem.problem import PlacementProblem
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.measuring.profiling import profile
from placeto.runtime.measuring.stopwatch import LEAST, in_turns, stopwatch
from placeto.runtime.placed import PlacedStep
from placeto.runtime.real_steps import RealStep
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.schedule import simulate

Place = Callable[[PlacementProblem, int], Sequence[PlacementResult]]
"""Placements for a problem, in any order; the number is that of the round."""

_ON_PROFILE = 0.2  # share of the time that profiling takes
_ON_CHECK = 0.15  # share that the last check takes
_GAIN = 0.01  # what a round must gain for another one


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement that was run."""

    result: PlacementResult
    measured_us: float  # median of its runs
    spread_us: float  # between the 10th and the 90th percentile

    @property
    def error(self) -> float:
        """Simulated over measured time, less one."""
        return self.result.makespan_us / self.measured_us - 1.0


@dataclass(frozen=True, eq=False)
class Round:
    """What one round found."""

    number: int
    seconds: float  # since tuning began
    candidates: tuple[Candidate, ...]  # the fastest first
    one_device_us: float  # measured in the same round


@dataclass(frozen=True, eq=False)
class Tuned:
    """The placement to use, and how it was found."""

    result: PlacementResult
    measured_us: float  # of `result`, in the last check
    one_device_us: float  # in the last check
    rounds: tuple[Round, ...]


def tune(
    step: RealStep,
    devices: Sequence[LocalDevice],
    place: Place,
    seconds: float,
    count: int = 4,
    report: Callable[[Round], None] = lambda finished: None,
) -> Tuned:
    """Find the placement that is fastest on this machine.

    Args:
        step: the step to be placed.
        devices: the devices to place it on.
        place: makes placements in simulation.
        seconds: budget of the whole search; what has begun is finished.
        count: how many placements are run in a round, one device beside them.
        report: called after each round.

    Raises:
        RunError: an op fails.
    """
    began = time.perf_counter()
    profiled = profile([step], devices, _ON_PROFILE * seconds)
    costs, best = profiled.costs, None
    rounds: list[Round] = []
    copies: dict[tuple[int, torch.device], Tensor] = {}

    def ready(result: PlacementResult) -> Callable[[], None]:
        return PlacedStep(step.capture, result.schedule(), devices).ready(step.leaves, copies)

    end = began + (1.0 - _ON_CHECK) * seconds
    while True:
        problem = PlacementProblem(step.capture.graph, profiled.cluster, costs)
        single = _on_one(problem)
        proposed = _distinct([*place(problem, len(rounds)), *([] if best is None else [_again(problem, best.result)])])
        new = [single, *proposed[:count]]
        left = max(end - time.perf_counter(), 0.0)
        times = in_turns(list(map(ready, new)), min(left, seconds / 4))
        candidates = [
            Candidate(result, float(np.median(runs_us)), float(np.diff(np.percentile(runs_us, [10, 90]))[0]))
            for result, runs_us in zip(new, times, strict=True)
        ]
        ranked = tuple(sorted(candidates, key=lambda candidate: candidate.measured_us))
        rounds.append(Round(len(rounds) + 1, time.perf_counter() - began, ranked, candidates[0].measured_us))
        report(rounds[-1])
        gained = _relative(rounds) < (1.0 - _GAIN) * _relative(rounds[:-1])
        if _relative(rounds) < _relative(rounds[:-1]):
            best = ranked[0]
        if time.perf_counter() > end or not gained:
            break
        fastest = next((candidate for candidate in ranked if candidate.result is not single), ranked[0])
        costs = corrected(costs, step, fastest.result, devices)
    assert best is not None
    problem = PlacementProblem(step.capture.graph, profiled.cluster, costs)
    single, final = _on_one(problem), _again(problem, best.result)
    alike = np.array_equal(final.placement, single.placement)
    left = max(began + seconds - time.perf_counter(), _ON_CHECK * seconds / 2)
    check = in_turns(list(map(ready, [single] if alike else [final, single])), left)
    final_us, single_us = (float(np.median(runs_us)) for runs_us in (check[0], check[-1]))
    return Tuned(final if final_us < single_us else single, min(final_us, single_us), single_us, tuple(rounds))


def corrected(costs: Profiled, step: RealStep, result: PlacementResult, devices: Sequence[LocalDevice]) -> Profiled:
    """Return costs in which each op takes the time that it took in a placement, while several devices computed."""
    watches = [device.run(stopwatch, device) for device in devices]
    run = PlacedStep(step.capture, result.schedule(), devices, [watch.stamp for watch in watches])
    passes, leaves = [], run.settled(step.leaves, {})
    for _ in range(LEAST + 1):
        run.run(leaves)
        passes.append([watch.times_us(stamps) for watch, stamps in zip(watches, run.stamps, strict=True)])
    took: dict[tuple[str, str], list[float]] = {}
    graph = step.capture.graph
    for number, (device, program) in enumerate(zip(devices, run.programs, strict=True)):
        median = np.median([times_us[number] for times_us in passes[1:]], axis=0)
        for node, us in zip(program.calls, median, strict=True):
            op = step.measurable.get(node.name)
            if op is not None and node not in program.receives:
                took.setdefault((graph.signatures[op], device.kind), []).append(float(us))
    ops = []
    for cost in costs.ops:
        mean = {kind: np.mean(us) for (signature, kind), us in took.items() if signature == cost.signature}
        ops.append(replace(cost, time_us={**cost.time_us, **{kind: max(float(us), 1e-3) for kind, us in mean.items()}}))
    return Profiled(costs.torch, costs.machine, tuple(ops), costs.fits, costs.steps)


def _relative(rounds: Sequence[Round]) -> float:
    """Return the best measured time so far, divided by that of one device in the same round."""
    return min((finished.candidates[0].measured_us / finished.one_device_us for finished in rounds), default=np.inf)


def _on_one(problem: PlacementProblem) -> PlacementResult:
    """Return the placement of all ops on the device that takes the least time for them."""
    placement = np.full(problem.num_ops, int(np.argmin(problem.op_time.sum(0))), np.int64)
    return PlacementResult.of(simulate(problem, placement))


def _again(problem: PlacementProblem, result: PlacementResult) -> PlacementResult:
    """Simulate a placement again, by the costs of the problem, in the order in which it was run."""
    order = result.schedule().order
    order = order[order < problem.num_ops]
    schedule = simulate(problem, result.placement, order=order)
    return replace(result, makespan_us=schedule.makespan_us, fits=schedule.fits, problem=problem, order=order)


def _distinct(results: Sequence[PlacementResult]) -> list[PlacementResult]:
    """Return the placements on several devices, the best first, each once."""
    by_placement: dict[bytes, PlacementResult] = {}
    for result in sorted(results, key=lambda result: result.makespan_us):
        if len(np.unique(result.placement)) > 1:
            by_placement.setdefault(result.placement.tobytes(), result)
    return list(by_placement.values())
