"""A split with the least maximal load in which a device may hold any units, by OR-tools' CP-SAT.

The model has a variable for each unit and device, and one for each tensor that crosses the border of a device; the
greatest load is minimised. Times are rounded down to ticks, so that the model's bound is one of the split too.

Legend: U units, T tensors, D devices.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np

from placeto.heuristics.exact.schedule_model import ortools
from placeto.heuristics.throughput.stream import Stream

_TICKS = 10**7  # of a device's equal share of the work
_WORKERS = 8  # with fewer CP-SAT leaves out strategies: with 2 it found 27.9 ms where 8 prove 21.9 ms, on two cores


def can_search() -> bool:
    """Whether OR-tools is installed."""
    return importlib.util.find_spec("ortools") is not None


def free_split(
    stream: Stream, cost_us: np.ndarray, start: np.ndarray | None, seconds: float, seed: int = 0
) -> tuple[np.ndarray | None, float]:
    """A split no worse than the one at the start, and a bound below which the greatest load of none is.

    Args:
        stream: what is split.
        cost_us: (T,) microseconds of each tensor, the same between all devices.
        start: (U,) device of each unit, which fits; None where none is known.
        seconds: how long to search at most.
        seed: of the search.

    Returns:
        (U,) device of each unit, None where none that fits was found, and the bound in microseconds: inf where it is
        proven that nothing fits.

    Raises:
        ExactError: OR-tools is not installed.
    """
    cp_model = ortools()
    model = cp_model.CpModel()
    units, devices = range(stream.num_units), range(len(stream.capacity))
    ticks = _TICKS * len(devices) / max(float(stream.time_us.min(axis=1).sum()), 1e-9)
    most_us = float(stream.time_us.max(axis=1).sum() + 2.0 * cost_us.sum())
    on = [[model.new_bool_var("") for _ in devices] for _ in units]
    for unit, row in enumerate(on):
        model.add_exactly_one(row)
        if start is not None:
            for device in devices:
                model.add_hint(row[device], int(start[unit] == device))
    busy = np.floor(stream.time_us * ticks).astype(np.int64).tolist()
    load: list[list[Any]] = [[busy[unit][device] * on[unit][device] for unit in units] for device in devices]
    for tensor, (home, us) in enumerate(zip(stream.producer.tolist(), cost_us.tolist(), strict=True)):
        readers = stream.readers.indices[stream.readers.indptr[tensor] : stream.readers.indptr[tensor + 1]].tolist()
        for device in np.flatnonzero(stream.sends).tolist() if us > 0 else ():
            made, crosses = on[home][device], model.new_bool_var("")
            for reader in readers:
                model.add_bool_or([~made, on[reader][device], crosses])
                model.add_bool_or([made, ~on[reader][device], crosses])
            load[device].append(int(us * ticks) * crosses)
    greatest = model.new_int_var(0, math.ceil(most_us * ticks), "greatest load")
    for device in devices:
        model.add(sum(load[device]) <= greatest)
        held = sum(int(stream.memory[unit]) * on[unit][device] for unit in units)
        if stream.memory.sum() > stream.capacity[device]:
            model.add(held <= int(stream.capacity[device]))
    model.minimize(greatest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = _WORKERS
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_time_in_seconds = max(0.01, seconds)
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, np.inf
    bound_us = float(solver.best_objective_bound) / ticks
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start, bound_us
    found = np.array([[solver.value(one) for one in row] for row in on]).argmax(axis=1)
    better = start is None or stream.loads_us(found).max() < stream.loads_us(start).max()
    return found if better else start, bound_us
