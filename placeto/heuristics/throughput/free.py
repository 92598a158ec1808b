"""A split with the least maximal load in which a device may hold any units, by OR-tools' CP-SAT.

The model has a variable for each unit and device, and one for each tensor and device whose border the tensor may cross.
The greatest load is minimised. CP-SAT can't solve large models. So the units of only two devices are divided anew at
first: of the device with the greatest load and of another one, as long as that helps. Only then are the units of all
devices divided anew. Times are rounded down to ticks, so that the model's lower bound also holds for the split.

Legend: U units, T tensors, D devices.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from placeto.heuristics.exact.schedule_model import ortools
from placeto.heuristics.throughput.stream import Stream

_TICKS = 10**7  # ticks of a device's equal share of the work
_WORKERS = 8  # CP-SAT uses fewer strategies with fewer: 2 found 27.9 ms where 8 proved 21.9 ms optimal, on two cores
_PAIR_SECONDS = 1.5  # upper limit for dividing the units of two devices


def can_search() -> bool:
    """Whether OR-tools is installed."""
    return importlib.util.find_spec("ortools") is not None


def free_split(
    stream: Stream, cost_us: np.ndarray, start: np.ndarray | None, seconds: float, seed: int = 0
) -> tuple[np.ndarray | None, float]:
    """Find a split that is no worse than the one at the start, and a lower bound of the greatest load of all splits.

    Args:
        stream: the stream to split.
        cost_us: (T,) microseconds of each tensor, the same between all devices.
        start: (U,) device of each unit in a split that fits; None if none is known.
        seconds: upper limit of the search.
        seed: of the search.

    Returns:
        (U,) device of each unit, None if no split that fits was found, and the bound in microseconds: inf if it is
        proven that nothing fits, 0 if the time was up before all devices were considered together.

    Raises:
        PlacerError: OR-tools is not installed.
    """
    ortools()
    until = time.perf_counter() + seconds
    if start is not None:
        start = _by_pairs(stream, cost_us, start, until, seed)
    if start is not None and time.perf_counter() >= until:
        return start, 0.0
    divided, bound_us = _shared_anew(
        stream, cost_us, start, range(len(stream.capacity)), until - time.perf_counter(), seed
    )
    if divided is None or (start is not None and _greatest(stream, start) <= _greatest(stream, divided)):
        return start, bound_us
    return divided, bound_us


def _greatest(stream: Stream, units: np.ndarray) -> float:
    return float(stream.loads_us(units).max())


def _by_pairs(stream: Stream, cost_us: np.ndarray, units: np.ndarray, until: float, seed: int) -> np.ndarray:
    """Divide the units of the device with the greatest load and of another one anew, until that doesn't help any more.

    The least loaded device is tried first, and the others follow by their loads. Returns the device of each unit (U,).
    """
    tried = set[int]()
    while (seconds_left := until - time.perf_counter()) > 0:
        loads = stream.loads_us(units)
        busiest = int(loads.argmax())
        others = [device for device in np.argsort(loads, kind="stable").tolist() if device != busiest]
        partner = next((device for device in others if device not in tried), None)
        if partner is None:
            break
        divided, _ = _shared_anew(stream, cost_us, units, (busiest, partner), min(seconds_left, _PAIR_SECONDS), seed)
        if divided is not None and _fewer(stream.loads_us(divided), loads):
            units, tried = divided, set()
        else:
            tried.add(partner)
    return units


def _fewer(loads: np.ndarray, than: np.ndarray) -> bool:
    """Whether `loads`, sorted from the greatest on, are less than those of `than` where the two first differ."""
    ours, theirs = np.sort(loads)[::-1], np.sort(than)[::-1]
    differ = np.flatnonzero(~np.isclose(ours, theirs, rtol=1e-9, atol=0.0))
    return bool(len(differ)) and bool(ours[differ[0]] < theirs[differ[0]])


def _shared_anew(
    stream: Stream, cost_us: np.ndarray, start: np.ndarray | None, among: Sequence[int], seconds: float, seed: int
) -> tuple[np.ndarray | None, float]:
    """Divide the units of some devices anew so that the greatest load of these devices is least.

    All other units stay where they are. No other device's load may exceed the greatest load at the start.

    Args:
        stream: the stream to split.
        cost_us: (T,) microseconds of each tensor, the same between all devices.
        start: (U,) device of each unit; None = there is no start, and `among` has all devices.
        among: the devices whose units are divided.
        seconds: upper limit of the search.
        seed: of the search.

    Returns:
        (U,) device of each unit, None if no solution was found, and a lower bound in microseconds, inf if nothing fits.
    """
    cp_model = ortools()
    model = cp_model.CpModel()
    ticks = _TICKS * len(stream.capacity) / max(float(stream.time_us.min(axis=1).sum()), 1e-9)
    most_us = float(stream.time_us.max(axis=1).sum() + 2.0 * cost_us.sum())
    on = list[dict[int, Any]]()  # for each unit: device that it may be on -> whether it is
    for unit in range(stream.num_units):
        if start is not None and start[unit] not in among:
            on.append({int(start[unit]): 1})
            continue
        on.append({device: model.new_bool_var("") for device in among})
        model.add_exactly_one(on[-1].values())
        if start is not None:
            for device, is_there in on[-1].items():
                model.add_hint(is_there, int(start[unit] == device))
    load: list[list[Any]] = [[] for _ in stream.capacity]
    memory: list[list[Any]] = [[] for _ in stream.capacity]
    for unit, devices in enumerate(on):
        for device, is_there in devices.items():
            load[device].append(int(stream.time_us[unit, device] * ticks) * is_there)
            memory[device].append(int(stream.memory[unit]) * is_there)
    for tensor, (home, us) in enumerate(zip(stream.producer.tolist(), cost_us.tolist(), strict=True)):
        readers = stream.readers.indices[stream.readers.indptr[tensor] : stream.readers.indptr[tensor + 1]].tolist()
        for device in sorted({device for unit in (home, *readers) for device in on[unit]}) if us > 0 else ():
            if not stream.sends[device]:
                continue
            is_made, crosses = on[home].get(device, 0), model.new_bool_var("")
            for reader in readers:
                model.add(crosses >= is_made - on[reader].get(device, 0))
                model.add(crosses >= on[reader].get(device, 0) - is_made)
            load[device].append(int(us * ticks) * crosses)
    greatest = model.new_int_var(0, math.ceil(most_us * ticks), "greatest load")
    limit = math.ceil(most_us * ticks) if start is None else math.ceil(_greatest(stream, start) * ticks)
    for device, capacity in enumerate(stream.capacity.tolist()):
        model.add(sum(load[device]) <= (greatest if device in among else limit))
        if stream.memory.sum() > capacity:
            model.add(sum(memory[device]) <= capacity)
    model.minimize(greatest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = _WORKERS
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_time_in_seconds = max(0.01, seconds)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, math.inf
    bound_us = float(solver.best_objective_bound) / ticks
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, bound_us
    value = [max(devices, key=lambda device: solver.value(devices[device])) for devices in on]
    return np.array(value), bound_us
