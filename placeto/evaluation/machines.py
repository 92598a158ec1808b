"""One model on several clusters: what a step takes and costs on each, compared with data parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeto.evaluation.summary import ratio
from placeto.formats.advice import data_parallel_advice
from placeto.plumbing.terminal import table
from placeto.problem.checks import Count, Flag, Index, Number, Record, Size, Text
from placeto.problem.json_files import write_json
from placeto.problem.units import format_us
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.single_device import best_single
from placeto.simulator.tool_steps.data_parallel import DataParallel, data_parallel

if TYPE_CHECKING:
    from placeto.placers import Placer
    from placeto.problem.problem import PlacementProblem

FORMAT = "placeto.machines/1"
_HOUR_US = 3.6e9


class ReplicasRecord(Record):
    """Data parallelism on a cluster."""

    least_us: Number  # least time of a step of all replicas
    most_us: Number  # greatest time of such a step
    all_reduce_us: Number  # time of the all-reduce
    batches: Count  # number of batches that such a step processes
    gradient_bytes: Size  # size of the gradients
    fits: Flag  # whether a replica fits
    price_per_batch: Number | None  # highest price of a batch; null without a price, or if a replica doesn't fit


class MachineRecord(Record):
    """A model on a cluster."""

    cluster: Text  # name of the cluster
    devices: Count  # number of devices
    placer: Text  # name of the placer
    makespan_us: Number  # makespan of the best placement found
    single_us: Number | None  # makespan on the best single device that holds the model, or null
    fits: Flag  # whether no device exceeds its memory
    simulations: Index  # how many simulations the placer made
    seconds: Number  # how long it took
    price_per_step: Number | None  # price of a step; null without a price
    data_parallel: ReplicasRecord  # a replica on each device in place of the placement


class MachinesRecord(Record):
    """The content of a comparison of clusters."""

    graph: Text  # name of the graph
    rows: list[MachineRecord]  # one for each cluster


@dataclass(frozen=True, eq=False)
class Machine:
    """A model on a cluster."""

    result: PlacementResult
    single_us: float | None  # step on the fastest device that holds the model; None = no device does
    replicas: DataParallel

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self.result.problem.cluster.name

    @property
    def speed_up(self) -> float | None:
        """How many times as fast as `single_us` a step is; None if no device holds the model."""
        return None if self.single_us is None else ratio(self.single_us, self.result.makespan_us)

    @property
    def price_per_step(self) -> float | None:
        """Price of a step, in the currency of the cluster's price; None if the cluster has no price."""
        price = self.result.problem.cluster.price_per_hour
        return None if price is None else price * self.result.makespan_us / _HOUR_US

    @property
    def price_per_batch(self) -> float | None:
        """Price of a batch with a replica on each device, at most; None without a price, or if replicas don't fit."""
        price = self.result.problem.cluster.price_per_hour
        if price is None or not self.replicas.fits:
            return None
        return price * self.replicas.most_us / self.replicas.batches / _HOUR_US

    @property
    def advice(self) -> str:
        """Whether to run a replica on each device instead, in a sentence."""
        return data_parallel_advice(self.result.problem, self.result.makespan_us, self.replicas)


def place_on(
    problem: PlacementProblem,
    placer: Placer,
    simulations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Machine:
    """Place a problem on its cluster, within a budget, and simulate its single devices and replicas beside that."""
    result = placer(problem, simulations=simulations, seconds=seconds, seed=seed)
    single = best_single(problem)
    return Machine(result, None if single is None else single.makespan_us, data_parallel(problem))


def machine_table(machines: Sequence[Machine]) -> str:
    """Return a table with a line for each machine: its placement, then replicas, whose step has a batch for each."""
    priced = any(machine.price_per_step is not None for machine in machines)
    cells = [["cluster", "step", "speed-up", "fits", "search", "replicas' step", "samples/s", "fit"]]
    cells[0] += ["price of 1000 steps", "replicas' 1000 batches"] if priced else []
    for machine in machines:
        result, replicas = machine.result, machine.replicas
        least, most = replicas.gain(result.makespan_us)
        row = [machine.name, format_us(result.makespan_us)]
        row += ["-" if machine.speed_up is None else f"{machine.speed_up:.2f}", _yes(result.fits)]
        row += [f"{result.seconds:.2f} s", _span(format_us(replicas.least_us), format_us(replicas.most_us))]
        row += [f"x {_span(f'{least:.2f}', f'{most:.2f}')}", _yes(replicas.fits)]
        row += [_price(machine.price_per_step), _price(machine.price_per_batch)] if priced else []
        cells.append(row)
    return table(cells, numbers=True)


def save_machines(machines: Sequence[Machine], graph: str, path: str | Path) -> None:
    """Write what the table says, unrounded, as ``.json`` (format "placeto.machines/1")."""
    write_json({"format": FORMAT, "graph": graph, "rows": [_row(machine) for machine in machines]}, path)


def _row(machine: Machine) -> dict[str, Any]:
    result, replicas = machine.result, machine.replicas
    return {
        "cluster": machine.name,
        "devices": result.problem.num_devices,
        "placer": result.placer,
        "makespan_us": float(result.makespan_us),
        "single_us": machine.single_us,
        "fits": bool(result.fits),
        "simulations": int(result.simulations),
        "seconds": float(result.seconds),
        "price_per_step": machine.price_per_step,
        "data_parallel": {
            "least_us": float(replicas.least_us),
            "most_us": float(replicas.most_us),
            "all_reduce_us": float(replicas.all_reduce_us),
            "batches": replicas.batches,
            "gradient_bytes": replicas.gradient_bytes,
            "fits": replicas.fits,
            "price_per_batch": machine.price_per_batch,
        },
    }


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _price(price: float | None) -> str:
    return "-" if price is None else f"{1000 * price:.3g}"
