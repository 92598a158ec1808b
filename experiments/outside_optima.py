"""Does the objective throughput reach the published optima of the maximal load, and how long does it take?

python -m experiments.outside_optima [--seconds 10]

The graphs are the throughput-inputs of dnn-partitioning (Tarnawski et al., NeurIPS 2020), the optima those of its
dynamic program. Loads are worked out again from the published file, by its definition: the time of a device's nodes,
and the cost of each output that leaves or enters it, once each; a CPU pays for no transfer and has any memory.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.command import command
from experiments.harness import DATA, published
from experiments.tables import markdown
from placeto.formats.graphs_of_others.dnn_partitioning import load
from placeto.heuristics.throughput import StreamPlacement, contiguous, free
from placeto.problem.cluster import Cluster, Device
from placeto.problem.problem import PlacementProblem

BYTES_PER_US = 2 * 2**30 / 1e6
"""The rate by which a tensor's bytes are read from an edge's cost, and cost the same again."""
_ANY_MEMORY = 2**60


@dataclass(frozen=True)
class Optima:
    """Which graphs, and for how long."""

    data: Path = DATA
    """folder with dnn-partitioning/ and parallel/golden.json"""
    inputs: tuple[str, ...] = ()
    """graphs such as LayerGraphs/gnmt_inference; all of the folder if not given"""
    seconds: float = 10.0
    """for each split, at most"""


def problem_of(document: dict[str, Any], accelerators: int, cpus: int = 1) -> PlacementProblem:
    """A workload with the costs of its edges in place of their sizes, on accelerators of its memory and CPUs.

    A node holds its size, or its outputs by those costs where they are more.
    """
    edges = [{key: edge[key] for key in ("sourceId", "destId", "cost")} for edge in document["edges"]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "workload.json"
        path.write_text(json.dumps({**document, "edges": edges}))
        graph = load(path)
    memory = int(document["maxSizePerFPGA"])
    devices = [Device(f"accelerator:{i}", "accelerator", 1e12, 1e12, memory) for i in range(accelerators)]
    devices += [Device(f"cpu:{i}", "cpu", 1e12, 1e12, _ANY_MEMORY) for i in range(cpus)]
    rate = np.full((len(devices), len(devices)), BYTES_PER_US)
    return PlacementProblem(graph, Cluster("published", tuple(devices), rate, np.zeros_like(rate)))


def published_load(document: dict[str, Any], placement: np.ndarray, accelerators: int) -> float:
    """The greatest load in ms of nodes on devices (N,), by the published definition; the accelerators come first.

    Raises:
        ValueError: nodes of one colour class are apart, or an accelerator holds more than it can.
    """
    nodes = document["nodes"]
    on = {node["id"]: int(device) for node, device in zip(nodes, placement, strict=True)}
    load = dict.fromkeys(on.values(), 0.0)
    held, classes = dict.fromkeys(load, 0.0), dict[Any, set[int]]()
    for node in nodes:
        device = on[node["id"]]
        load[device] += node["fpgaLatency" if device < accelerators else "cpuLatency"]
        held[device] += node["size"]
        if node.get("colorClass") is not None:
            classes.setdefault(node["colorClass"], set()).add(device)
    cost = {edge["sourceId"]: edge["cost"] for edge in document["edges"]}
    readers: dict[int, set[int]] = {}
    for edge in document["edges"]:
        readers.setdefault(edge["sourceId"], set()).add(on[edge["destId"]])
    for src, devices in readers.items():
        if away := devices - {on[src]}:
            for device in (away | {on[src]}) & set(range(accelerators)):
                load[device] += cost[src]
    if any(len(devices) > 1 for devices in classes.values()):
        raise ValueError("nodes of one colour class are on different devices")
    if any(held[device] > document["maxSizePerFPGA"] for device in held if device < accelerators):
        raise ValueError("an accelerator holds more than it can")
    return max(load.values())


def main(config: Optima) -> None:
    """One line a graph."""
    rows = published(config.data, "max_load_optima")
    known = {row["input"]: row for row in rows}
    folder = config.data / "dnn-partitioning" / "throughput-inputs"
    names = config.inputs or tuple(str(path.relative_to(folder))[:-5] for path in sorted(folder.glob("*/*.json")))
    head = ["graph", "accelerators", "human split, ms", "published optimum, ms"]
    head += ["contiguous, ms", "proven", "s", "free, ms", "no free split below, ms", "gain of free", "s"]
    table, reached = [head], []
    for name in names:
        document, row = json.loads((folder / f"{name}.json").read_text()), known.get(name, {})
        accelerators = row.get("k", document["maxFPGAs"])
        problem = problem_of(document, accelerators)

        def ms(result: StreamPlacement, document: dict[str, Any] = document, count: int = accelerators) -> float:
            return published_load(document, result.placement, count)

        piped, loose = (placer(problem, seconds=config.seconds) for placer in (contiguous, free))
        if "optimum" in row:
            reached.append(ms(piped) <= row["optimum"] + 1e-4)
        gain = 1.0 - ms(loose) / ms(piped)
        line = [name, str(accelerators), *(f"{row[key]:.4f}" if key in row else "" for key in ("expert", "optimum"))]
        line += [f"{ms(piped):.4f}", "yes" if piped.optimal else "no", f"{piped.seconds:.1f}"]
        bound = f"{min(loose.bound_us / 1e3, ms(loose)):.4f}"
        line += [f"{ms(loose):.4f}", bound, f"{gain:.1%}", f"{loose.seconds:.1f}"]
        table.append(line)
    print(f"{markdown(table)}\n")
    print(f"The published contiguous optimum is reached on {sum(reached)} of {len(reached)} graphs.")


if __name__ == "__main__":
    times = "Loads are published times and costs, in ms a sample; s are wall-clock seconds, on this machine."
    command(main, Optima, "outside_optima", __doc__, times)
