"""Do our simulated orders leave no more idle time than the textbook formulas of pipelines, and than torch's schedules?

python -m experiments.outside_bubbles

A pipeline of p devices with v chunks of layers each runs m micro-batches. A micro-batch takes a device 1 ms forward,
1 ms for gradients of inputs and 1 ms for those of weights; links are free. By the textbook the idle share of the step
is (p - 1) / (m + p - 1) for GPipe and 1F1B and (p - 1) / (v m + p - 1) interleaved, where a backward pass is one piece.
Where it is in two, one chunk a device can't take less than (p - 1) + 3 m ms (Qi et al., ICLR 2024). Torch's makespans
are those of the orders that torch.distributed.pipelining makes. A chunk is held from its forward pass to the end of its
backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.command import command
from experiments.harness import DATA, published
from experiments.tables import markdown
from placeto.heuristics.pipelines.bounded_orders import bounded_orders
from placeto.problem.cluster import STATIC_ORDERS, Cluster, Device
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate

_MS = 1000.0
WHOLE = "GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B"
"""Torch's schedules in which a backward pass is one piece."""


@dataclass(frozen=True)
class Bubbles:
    """Which pipelines."""

    data: Path = DATA
    """folder with parallel/golden.json, where torch's makespans are from"""
    sizes: tuple[tuple[int, int], ...] = ((4, 8), (4, 16), (8, 16))
    """devices and micro-batches"""


def pipeline(devices: int, chunks: int, micro_batches: int, split: bool) -> ComputationGraph:
    """A pipeline of devices x chunks stages; of a backward pass that is split gradients of weights are ops apart."""
    count, took = devices * chunks, _MS / chunks
    records: list[dict[str, Any]] = []

    def add(kind: str, stage: int, batch: int, time_us: float, reads: list[str]) -> None:
        record = {"name": f"{kind}{stage}.{batch}", "type": kind, "micro_batch": batch, "module": f"stage{stage}"}
        record |= {"pass": "forward" if kind == "F" else "backward", "outputs": [1], "time_us": {"*": time_us}}
        records.append({**record, "inputs": [[f"{name}.{batch}", 0] for name in reads]})

    for batch in range(micro_batches):
        for stage in range(count):
            add("F", stage, batch, took, [f"F{stage - 1}"] if stage else [])
        for stage in reversed(range(count)):
            later = [f"I{stage + 1}"] if stage + 1 < count else []
            add("I", stage, batch, took if split else 2 * took, [f"F{stage}", *later])
            if split:
                add("W", stage, batch, took, [f"F{stage}", f"I{stage}"])
    return ComputationGraph.from_ops("pipeline", records)


def stages_on(devices: int, chunks: int) -> dict[str, np.ndarray]:
    """Device of each stage: one after the other, in turns, or there and back."""
    forth = np.arange(devices)
    found = {"loop": np.tile(forth, chunks)}
    if chunks == 2:
        found["V"] = np.concatenate([forth, forth[::-1]])
    return found


def live_chunks(schedule: Schedule) -> int:
    """The most chunks whose activations a device holds: from the start of a forward pass to the last that reads it."""
    graph, events = schedule.problem.graph, dict[tuple[int, str], list[float]]()
    for op, name in enumerate(graph.op_names):
        key = int(schedule.placement[op]), name[1:]
        events.setdefault(key, []).extend((float(schedule.start_us[op]), float(schedule.finish_us[op])))
    spans: dict[int, list[tuple[float, int]]] = {}
    for (device, _), times in events.items():
        spans.setdefault(device, []).extend(((min(times), 1), (max(times), -1)))
    return max(int(np.cumsum([step for _, step in sorted(of)]).max()) for of in spans.values())


def schedules(devices: int, chunks: int, micro_batches: int, split: bool) -> Iterator[tuple[str, Schedule]]:
    """Every order of ours, with its name, on every way to put the stages."""
    names = tuple(Device(f"gpu:{i}", "gpu", 1e12, 1e12, 10**12) for i in range(devices))
    links = np.full((devices, devices), 1e12)
    cluster = Cluster("free links", names, links, np.zeros_like(links), link="free")
    problem = PlacementProblem(pipeline(devices, chunks, micro_batches, split), cluster)
    number = [int(module.removeprefix("stage")) for module in problem.graph.modules]
    for way, on in stages_on(devices, chunks).items():
        placement = on[number]
        for order in STATIC_ORDERS:
            yield f"{order}, {way}", simulate(problem.under(order), placement)
        for at, listed in enumerate(bounded_orders(problem, placement)):
            yield f"bounded {at + 1}, {way}", simulate(problem, placement, order=listed)


def main(config: Bubbles) -> None:
    """One line for each pipeline, with a backward pass in one piece and in two."""
    rows = published(config.data, "torch_schedules")
    head = ["backward pass", "v", "p", "m", "formula or bound, ms", "torch's best, ms", "its chunks", "our best, ms"]
    head += ["chunks", "idle", "our order", "in torch's memory, ms"]
    table = [head]
    for split in (False, True):
        for chunks in (1, 2):
            for devices, count in config.sizes:
                same = [row for row in rows if row[1:4] == [chunks, devices, count] and (row[0] in WHOLE) != split]
                least = min((tuple(row[4:]) for row in same), default=None)
                work = 3.0 * count
                bound = work + (devices - 1) * (1.0 if split else 3.0) / (1 if split else chunks)
                found = [
                    (name, one.makespan_us / _MS, live_chunks(one))
                    for name, one in schedules(devices, chunks, count, split)
                ]
                order, ms, live = min(found, key=lambda one: (round(one[1], 6), one[2]))
                line = ["in two" if split else "whole", str(chunks), str(devices), str(count)]
                line.append(f"{bound:.1f}" if not split or chunks == 1 else "")
                line += [f"{least[0]:.1f}", str(least[1])] if least else ["", ""]
                line += [f"{ms:.1f}", str(live), f"{1.0 - work / ms:.1%}", order]
                within = [ms for _, ms, live in found if least and live <= least[1]]
                table.append([*line, f"{min(within):.1f}" if within else ""])
    print(markdown(table))


if __name__ == "__main__":
    command(main, Bubbles, "outside_bubbles", __doc__)
