"""Valid documents of every format, and how they are damaged: what `experiments.fuzz` reads.

Documents are changed in structure (fields removed, renamed, doubled, exchanged, replaced by what breaks readers) or in
their bytes, plain and compressed. Weights whose settings are changed get a right checksum, and checkpoints get tensors
of odd kinds; ONNX models are in `experiments.fuzz_onnx`.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

import placeto
from experiments.fuzz_checkpoints import checkpoint, odd_tensors
from experiments.fuzz_onnx import MODELS, change_model, to_bytes
from placeto.errors import ClusterError, CostsError, GraphError, PlacementError, PlacerError, TrainingError
from placeto.evaluation.comparison import Row, load_rows, save_rows
from placeto.evaluation.summary import markdown_table, summarize
from placeto.formats.graphs_of_others import dnn_partitioning, doppler, pipedream, stg
from placeto.formats.onnx_import import onnx_model
from placeto.formats.placement import PlacementFile, load_placement, save_placement
from placeto.placers import load_placer
from placeto.policies.weights import checksum, load_weights
from placeto.problem.cluster import Cluster, load_cluster, save_cluster
from placeto.problem.costs.profiled import Profiled, load_profiled, save_profiled, torch_version
from placeto.problem.graph import ComputationGraph, load_graph, save_graph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

HOW = ("structure", "bytes")
_OPS: list[dict[str, Any]] = [
    {"name": "a", "type": "mm", "flops": 2e9, "bytes_accessed": 12e6, "param_bytes": 400, "outputs": [40, 8]}
    | {"trained_bytes": 200, "state_bytes": 400, "resident_outputs": [0]},
    {"name": "b", "outputs": [4], "inputs": [["a", 0]], "colocation": "g", "module": "net.0"},
    {"name": "c", "outputs": [4], "inputs": [["a", 1], ["a", 0]], "colocation": "g", "time_us": {"k80": 3.5, "*": 2}},
    {"name": "d", "inputs": [["b", 0], ["c", 0]]},
]
_DEVICE = {"name": "gpu", "kind": "p100", "flops": 9.5e12, "memory_bandwidth": 7.3e11, "memory": 16e9}
_CLUSTER = {
    "format": "placeto.cluster/1",
    "name": "mine",
    "transfers": "broadcast",
    "link": "egress",
    "devices": [{**_DEVICE, "overhead_us": 5.0}, {**_DEVICE, "name": "other"}],
    "bandwidth": [[0, 12e9], [6e9, None]],
    "latency_us": [[99, 1], [2, 99]],
    "link_gap_us": 3.0,
}
_HOSTS = {
    "format": "placeto.cluster/1",
    "devices": [{**_DEVICE, "count": 4}],
    "topology": {"hosts": [[2], [1, 1]]}
    | {level: {"bandwidth": 48e9, "latency_us": 10} for level in ("island", "host", "network")},
}
_PLACEMENT = {
    "format": "placeto.placement/1",
    "graph_hash": ComputationGraph.from_ops("g", _OPS).hash,
    "cluster": "2xp100",
    "makespan_us": 12.5,
    "fits": True,
    "peak_memory": {"gpu:0": 123, "gpu:1": 4},
    "placer": "etf",
    "simulations": 3,
    "seconds": 0.25,
    "placement": {"a": "gpu:0", "b": "gpu:1", "c": "gpu:0", "d": "gpu:1"},
}
_ROW = {
    "graph": "g",
    "cluster": "2xp100",
    "placer": "etf",
    "seed": 0,
    "makespan_us": 2.0,
    "relative": 0.5,
    "lower_bound_us": 1.0,
    "fits": True,
    "simulations": 5,
    "seconds": 0.1,
    "budget": {"simulations": 5, "seconds": None},
    "key": "0123",
    "history": [[1, 0.1, 3.0], [5, 0.2, 2.0]],
}
_COSTS = {
    "format": "placeto.costs/1",
    "torch": torch_version(),
    "machine": "x86_64",
    "steps": [
        {"name": "g", "kind": "p100", "signatures": 1, "held_out_error": 0.1, "predicted_us": 2.0}
        | {"measured_us": 3.0, "eager_us": None}
    ],
    "fits": {"p100": {"*": {"fixed_us": 3.1, "us_per_flop": 2.5e-5, "us_per_byte": 1e-4}}},
    "ops": [{"signature": "mm(f32[2])", "type": "mm", "flops": 6.0, "bytes_accessed": 8.0, "time_us": {"p100": 7.0}}],
}
_SAVED: dict[str, Any] = load_weights(Path(placeto.__file__).parent / "pretrained" / "placeto.safetensors")
_PARAMETERS: dict[str, np.ndarray] = _SAVED.pop("best_parameters")
_NODE = {"supportedOnFpga": 1, "cpuLatency": 2.0, "fpgaLatency": 0.5, "isBackwardNode": 0, "size": 90.0}
_WORKLOAD = {
    "maxFPGAs": 4,
    "nodes": [{"id": i, "name": f"n{i}", "colorClass": i // 2, **_NODE} for i in range(4)],
    "edges": [{"sourceId": 0, "destId": i, "cost": 0.5, "size": 8.0 + i} for i in (1, 2, 3)]
    + [{"sourceId": 1, "destId": 3, "cost": 0.25}],
}
_NUMBERS = "forward_compute_time=0.250, backward_compute_time=0.125, activation_size={}, parameter_size=80.0"
_PROFILE = [
    f"node1 -- Input -- {_NUMBERS.format('1000.0')}",
    f"node2 -- LSTM(2048, 1024) -- {_NUMBERS.format('[600.0; 12.0]')}",
    f"node3 -- __getitem__(1) -- {_NUMBERS.format('12.0').replace('0.250', '0').replace('0.125', '0')}",
    f"node10 -- Linear(bias=True) -- {_NUMBERS.format('40.0')}",
    *(f"\tnode{src} -- node{dst}" for src, dst in ((1, 2), (2, 3), (3, 10), (2, 10))),
]
_DOPPLER = ["6", "0, 1", "0, 0, 1, 2", "1, 2, 3, 3", "100,40", "70,30", "50,1", "10,1000"]
_STG = ["3", "0 0 0", "1 20 1 0", "2 15 1 1 6", "3 10 2", "1 5", "2 7", "4 0 1 3", "# Tasks: 3"]
RAW = ["[" * 100_000 + "]" * 100_000, '{"a":' * 40 + "1" + "}" * 40, "9" * 400, "9" * 5000, "1e400", "-1e400", "NaN"]
"""JSON that can't be made of Python's values, or only by limits of its own."""
EVIL: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 0.5, -0.0, 1e-300, 5e-324, 1e15, 1e18, 1e25, 1e308),
    *(10**30, 2**53, 2**62, 2**63),
    *(
        "",
        "a",
        "0",
        "²",
        "k80",
        "*",
        "gpu:0",
        "\x1b[31m",
        "\ud800",
        "\n",
        "é",
        "x" * 100_000,
        "x." * 10_000,
        "training",
        "1e3",
        "a\r\nb",
        "\u202ea",
        "a\x00b",
        '$(id)\'"""',
    ),
    *([], {}, [[]], ["a"], [0], ["a", 0], ["a", 10**30], [["a", 0]], {"a": 1}, {"k80": 3.0}, [[0, 1e9], [1e9, 0]]),
    *(f"@raw{i}@" for i in range(len(RAW))),
]
TOKENS = [
    *(
        "²",
        "-1",
        "nan",
        "inf",
        "1e400",
        "9" * 30_000,
        "",
        " -- ",
        "[1.0; 2.0]",
        "1_0",
        "\x1b[31m",
        "node2",
        "0",
        "Input",
    ),
]
"""What parts of a line are replaced by."""


def _text(document: Any) -> bytes:
    """The text of a document, with what JSON has no words for."""
    text = "\n".join(document) if isinstance(document, list) else json.dumps(document)
    for i, raw in enumerate(RAW):
        text = text.replace(f'"@raw{i}@"', raw)
    return text.encode(errors="replace")


@dataclass(frozen=True)
class Format:
    """A kind of file: valid documents, how it is read and used, and the error that it is refused with."""

    documents: tuple[Any, ...]  # JSON documents, lists of lines, or messages of ONNX
    suffix: str
    read: Callable[[Path], Any]
    error: type[ValueError]
    use: Callable[[Any, Path], object]
    change: Callable[[Any, random.Random], None]  # changes a document in one place
    encode: Callable[[Any], bytes] = _text
    share_of_bytes: float = 1 / 7  # of the mutated documents


def _simulate(graph: ComputationGraph, cluster: Cluster) -> None:
    try:
        problem = PlacementProblem(graph, cluster)
    except GraphError:  # times or sizes that are fine by themselves, but not together
        return
    schedule = simulate(problem, np.arange(problem.num_ops) % problem.num_devices)
    assert problem.lower_bound_us * (1 - 1e-9) <= schedule.makespan_us < np.inf
    assert (schedule.peak_memory >= 0).all()


def _use_graph(graph: ComputationGraph, path: Path) -> None:
    _simulate(graph, load_cluster("2xp100"))
    save_graph(graph, path)
    assert load_graph(path).hash == graph.hash


def _use_placement(file: PlacementFile, path: Path) -> None:
    graph, cluster = ComputationGraph.from_ops("g", _OPS), load_cluster("2xp100")
    with suppress(PlacementError):  # for another graph or cluster
        simulate(PlacementProblem(graph, cluster), file.devices(graph, cluster))
    save_placement(file, path)
    assert load_placement(path) == file


def _use_rows(rows: list[Row], path: Path) -> None:
    save_rows(rows, path)
    assert load_rows(path) == rows
    markdown_table(summarize(rows))


def _use_cluster(cluster: Cluster, path: Path) -> None:
    _simulate(ComputationGraph.from_ops("g", _OPS), cluster)
    save_cluster(cluster, path)
    assert load_cluster(path).hash == cluster.hash


def _weights(state: Any) -> bytes:
    """A file of weights, with a right checksum whatever its settings are."""
    text = _text(state).decode()
    return save(_PARAMETERS, {"placeto": text, "sha256": checksum(_PARAMETERS, text)})


def _change_state(state: Any, rng: random.Random) -> None:
    """Change one value of a checkpoint, or put a tensor of another kind in its place."""
    if rng.random() < 0.5:
        _change_value(state, rng)
    elif places := list(_places(state)):
        holder, key = rng.choice(places)
        holder[key] = rng.choice(odd_tensors())


def _use_placer(placer: Any, path: Path) -> None:
    problem = PlacementProblem(ComputationGraph.from_ops("g", _OPS), load_cluster("2xp100"))
    assert placer(problem, simulations=3, seed=0).makespan_us > 0


def _use_costs(costs: Profiled, path: Path) -> None:
    graph = ComputationGraph.from_ops("g", [*_OPS, {"name": "e", "signature": "mm(f32[2])"}])
    with suppress(GraphError, CostsError):  # times that are too long, or no time for the kind
        PlacementProblem(graph, load_cluster("2xp100"), costs)
    save_profiled(costs, path)
    assert load_profiled(path).name == costs.name


def mutated(name: str, how: str, rng: random.Random) -> tuple[bytes, str]:
    """A mutated document of a format, and the ending of its file's name."""
    found = FORMATS[name]
    document = copy.deepcopy(rng.choice(found.documents))
    if how == "structure":
        for _ in range(rng.choice((1, 1, 2, 4))):
            found.change(document, rng)
    data, suffix = found.encode(document), found.suffix
    packed = found.suffix == ".json" and rng.random() < (0.5 if how == "bytes" else 0.1)
    if packed:
        data, suffix = gzip.compress(data, mtime=0), f"{suffix}.gz"
    if how == "bytes":
        for _ in range(rng.choice((1, 1, 2, 8))):
            data = _change_bytes(data, rng)
    return data, suffix


def _change_value(document: Any, rng: random.Random) -> None:
    """Change one place of a JSON document."""
    places = list(_places(document))
    if not places:
        return
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(("extra", "name", "time_us", "", "\x1b[31m"))] = holder.pop(key)
    elif kind == 1:
        holder.insert(key, _copied(holder[key]))
    elif kind == 2:
        other, where = rng.choice(places)
        holder[key], other[where] = _copied(other[where]), _copied(holder[key])
    elif kind in (3, 4) and isinstance(holder[key], int | float):
        holder[key] = holder[key] * rng.choice((-1, 0.5, 1e-9, 1e9, 10**20))
    else:
        holder[key] = _copied(rng.choice(EVIL))


def _copied(value: Any) -> Any:
    """A copy of lists and objects; not of tensors, some kinds of which torch can't copy."""
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else value


def _places(value: Any) -> Any:
    """Every (list or object, key) in a document."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _change_lines(lines: list[str], rng: random.Random) -> None:
    """Change one line of a profile or of another file of lines."""
    if not lines:
        return
    line = rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        del lines[line]
    elif kind == 1:
        lines.insert(rng.randrange(len(lines)), lines[line])
    elif kind == 2:
        lines[line] = lines[line].replace(rng.choice((" -- ", "=", "node", "(", ", ")), rng.choice(TOKENS), 1)
    else:
        parts = lines[line].replace("=", " = ").split(" ")
        parts[rng.randrange(len(parts))] = rng.choice(TOKENS)
        lines[line] = " ".join(parts).replace(" = ", "=")


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip a bit, or cut, double, or insert a few bytes."""
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((1, 4, 40)))
    kind = rng.randrange(5)
    if kind == 0 and start < len(data):
        return data[:start] + bytes([data[start] ^ (1 << rng.randrange(8))]) + data[start + 1 :]
    if kind == 1:
        return data[:start] + data[end:]
    if kind == 2:
        return data[:end] + data[start:]
    if kind == 3:
        return data[:start]
    return (
        data[:start]
        + rng.choice((b"[", b"]", b"{", b'"', b"\\", b"\x00", b"\xff", b"9", b"-", b"e", b"\n"))
        + data[start:]
    )


def _json(documents: tuple[Any, ...], read: Any, error: type[ValueError], use: Any) -> Format:
    return Format(documents, ".json", read, error, use, _change_value)


def _lines(lines: list[str], suffix: str, module: Any) -> Format:
    return Format((lines,), suffix, module.load, GraphError, _use_graph, _change_lines)


FORMATS: dict[str, Format] = {
    "graph": _json(
        ({"format": "placeto.graph/1", "name": "tiny", "mode": "training", "ops": _OPS},),
        load_graph,
        GraphError,
        _use_graph,
    ),
    "cluster": _json((_CLUSTER, _HOSTS), load_cluster, ClusterError, _use_cluster),
    "placement": _json((_PLACEMENT,), load_placement, PlacementError, _use_placement),
    "evaluation": _json(
        ({"format": "placeto.evaluation/1", "rows": [_ROW, {**_ROW, "placer": "heft", "makespan_us": 3.0}]},),
        load_rows,
        PlacerError,
        _use_rows,
    ),
    "costs": _json((_COSTS,), load_profiled, CostsError, _use_costs),
    "dnn-partitioning": _json((_WORKLOAD,), dnn_partitioning.load, GraphError, _use_graph),
    "PipeDream": _lines(_PROFILE, ".graph.txt", pipedream),
    "DOPPLER": _lines(_DOPPLER, "nodes.txt", doppler),
    "STG": _lines(_STG, ".stg", stg),
    "weights": Format(
        (_SAVED,), ".safetensors", load_placer, TrainingError, _use_placer, _change_value, _weights, 1 / 2
    ),
    "checkpoint": Format(
        (_SAVED | {"best_parameters": {name: torch.from_numpy(value) for name, value in _PARAMETERS.items()}},),
        ".pt",
        load_placer,
        TrainingError,
        _use_placer,
        _change_state,
        checkpoint,
    ),
    "ONNX": Format(MODELS, ".onnx", onnx_model.load, GraphError, _use_graph, change_model, to_bytes, 1 / 2),
}
