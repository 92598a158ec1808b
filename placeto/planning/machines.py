"""One step on several clusters: the best way to run it on each, what that takes, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placeto.formats.advice import data_parallel_advice
from placeto.planning.planned_steps import Kind, PlannedStep, Plans
from placeto.planning.variants import COUNTS, GraphOf, Variants
from placeto.planning.ways import DEFAULT_SIMULATIONS, plans_of
from placeto.plumbing.terminal import table
from placeto.problem.checks import Count, Flag, Number, Record, Size, Text
from placeto.problem.cluster import Cluster
from placeto.problem.costs import CostModel
from placeto.problem.json_files import write_json
from placeto.problem.units import format_rate, format_us
from placeto.simulator.tool_steps.data_parallel import data_parallel, ratio

FORMAT = "placeto.machines/2"
_HOUR_US = 3.6e9


class MachineRecord(Record):
    """The best way to run a step on a cluster."""

    cluster: Text  # name of the cluster
    devices: Count  # number of devices
    kind: Text  # the best way, such as "pipeline"
    shape: Text  # how the way uses devices, such as "4 stages x 2"
    micro_batches: Count  # number of micro-batches
    recomputed: Text  # which activations are computed again, such as "5 of 22 blocks"; empty if none are
    run_by: Text  # a tool that can run the way
    step_us: Number  # time of a step
    samples_per_second: Number | None  # samples of the batch in a second; null if the batch isn't known
    one_device_us: Number | None  # time of a step on the best single device that holds the model, or null
    used_bytes: Size  # what the fullest device holds
    fits: Flag  # whether no device exceeds its memory
    seconds: Number  # how long it took to find the way
    price_per_step: Number | None  # price of a step; null without a price, or if the step doesn't fit


class MachinesRecord(Record):
    """The content of a comparison of clusters."""

    graph: Text  # name of the model
    rows: list[MachineRecord]  # one for each cluster


@dataclass(frozen=True, eq=False)
class Machine:
    """The ways to run a step on a cluster."""

    cluster: Cluster
    plans: Plans
    seconds: float  # how long it took to find the ways
    replicas: str = ""  # if the step can't be split: a sentence on a replica with a batch of its own on each device

    @property
    def best(self) -> PlannedStep:
        """The best way."""
        return self.plans.best

    @property
    def samples_per_second(self) -> float | None:
        """Samples of the batch in a second of the best way; None if the batch isn't known."""
        return self.plans.samples_per_second(self.best)

    @property
    def one_device_us(self) -> float | None:
        """Microseconds of a step on the best single device that holds the model; None if no device does."""
        alone = (step for step in self.plans.steps if step.kind == Kind.ONE and step.fits)
        return next((step.step_us for step in alone), None)

    @property
    def speed_up(self) -> float | None:
        """How many times as fast as on one device a step is; None if no device holds the model."""
        return None if self.one_device_us is None else ratio(self.one_device_us, self.best.step_us)

    @property
    def price_per_step(self) -> float | None:
        """Price of a step, in the currency of the cluster's price; None without a price, or if the step doesn't fit."""
        price = self.cluster.price_per_hour
        return None if price is None or not self.best.fits else price * self.best.step_us / _HOUR_US

    @property
    def advice(self) -> str:
        """Which way to use and why, in a few sentences."""
        return f"{self.plans.advice()} {self.replicas}".strip()


def plan_on_each(
    clusters: Sequence[Cluster],
    costs: CostModel,
    graph_of: GraphOf,
    batch: int,
    grouped: bool = False,
    counts: Iterable[int] = COUNTS,
    simulations: int = DEFAULT_SIMULATIONS,
    seed: int = 0,
    headroom: int = 0,
) -> list[Machine]:
    """Return the ways to run a step on each of several clusters.

    Args:
        clusters: the clusters.
        costs: the cost model.
        graph_of: captures the step; it should keep what it captured, as it is asked for each cluster.
        batch: number of samples of a step; 0 = unknown.
        grouped: whether the step can be captured in tensor-parallel groups.
        counts: numbers of micro-batches to try.
        simulations: budget of the search for a free placement on each cluster; 0 = no search.
        seed: seed of that search.
        headroom: bytes of each device that stay free.

    Raises:
        CaptureError: the step can't be captured in any of these numbers.
        ClusterError: the headroom leaves a device no memory.
        PlanError: `counts` is empty, or `simulations` is negative.
    """
    machines = list[Machine]()
    for variants in [Variants(graph_of, cluster, costs, batch, grouped, headroom) for cluster in clusters]:
        begin = time.perf_counter()
        plans = plans_of(variants, counts, simulations, seed)
        seconds, replicas = time.perf_counter() - begin, ""
        if plans.tried == (1,):
            replicas = data_parallel_advice(variants(1), plans.best.step_us, data_parallel(variants(1)))
        machines.append(Machine(variants.cluster, plans, seconds, replicas))
    return machines


def machine_table(machines: Sequence[Machine]) -> str:
    """Return a table with a line for the best way on each cluster."""
    priced = any(machine.price_per_step is not None for machine in machines)
    known = any(machine.samples_per_second is not None for machine in machines)
    cells = [["cluster", "best way", "shape", "M", "recomputed", "step"]]
    cells[0] += [*["samples/s"] * known, "speed-up", "fits", *["price of 1000 steps"] * priced]
    for machine in machines:
        best = machine.best
        row = [machine.cluster.name, best.kind, best.shape, f"{best.micro_batches}", best.recomputed or "-"]
        row += [format_us(best.step_us)]
        row += [] if (rate := machine.samples_per_second) is None else [format_rate(rate)]
        row += ["-" if machine.speed_up is None else f"{machine.speed_up:.2f}", "yes" if best.fits else "no"]
        row += [_price(machine.price_per_step)] * priced
        cells.append(row)
    return table(cells)


def verdict(machines: Sequence[Machine]) -> str:
    """Say on which cluster a step takes the least time, and on which it costs the least; "" if only one holds it."""
    fitting = [machine for machine in machines if machine.best.fits]
    if len(fitting) < 2:
        return ""
    fastest = min(fitting, key=lambda machine: machine.best.step_us)
    text = f"A step is fastest on {fastest.cluster.name}: {format_us(fastest.best.step_us)}."
    priced = [(price, each.cluster.name) for each in fitting if (price := each.price_per_step) is not None]
    if len(priced) > 1:
        least, cheapest = min(priced)
        text += f" It is cheapest on {cheapest}: 1000 steps cost {_price(least)}."
    return text


def save_machines(machines: Sequence[Machine], name: str, path: str | Path) -> None:
    """Write what the table says, unrounded, as ``.json`` (format "placeto.machines/2")."""
    write_json({"format": FORMAT, "graph": name, "rows": [_row(machine) for machine in machines]}, path)


def _row(machine: Machine) -> dict[str, Any]:
    best = machine.best
    return {
        "cluster": machine.cluster.name,
        "devices": machine.cluster.num_devices,
        "kind": str(best.kind),
        "shape": best.shape,
        "micro_batches": best.micro_batches,
        "recomputed": best.recomputed,
        "run_by": best.run_by,
        "step_us": float(best.step_us),
        "samples_per_second": machine.samples_per_second,
        "one_device_us": machine.one_device_us,
        "used_bytes": best.used,
        "fits": best.fits,
        "seconds": machine.seconds,
        "price_per_step": machine.price_per_step,
    }


def _price(price: float | None) -> str:
    return "-" if price is None else f"{1000 * price:.3g}"
