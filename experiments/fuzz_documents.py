"""Valid documents of every format, and how they are damaged: what `experiments.fuzz` reads.

Documents are changed in structure (fields removed, renamed, doubled, exchanged, given another type, replaced by what
breaks readers) or in their bytes, plain and compressed. Weights whose settings are changed get a right checksum, and
checkpoints get tensors of odd kinds; ONNX models are in `experiments.fuzz_onnx`.
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
from experiments.fuzz_changes import RAW, change_bytes, change_lines, change_value, places_of
from experiments.fuzz_checkpoints import checkpoint, odd_tensors
from experiments.fuzz_onnx import MODELS, change_model, to_bytes
from placeto.cli.shared.model_config import is_config, make_model
from placeto.errors import ClusterError, CostsError, GraphError, PlacementError, PlacerError, TrainingError, UsageError
from placeto.evaluation.comparison import Row, load_rows, save_rows
from placeto.evaluation.summary import markdown_table, summarize
from placeto.formats.graphs_of_others import dnn_partitioning, doppler, pipedream, stg
from placeto.formats.nvidia import load_machine
from placeto.formats.onnx_import import onnx_model
from placeto.formats.placement import PlacementFile, load_placement, save_placement
from placeto.formats.plan import PlanFile, load_plan, save_plan
from placeto.placers import load_placer
from placeto.policies.weights import checksum, load_weights
from placeto.problem.cluster import Cluster, load_cluster, save_cluster
from placeto.problem.costs.efficiency import Efficiency, load_efficiency
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
    "devices": [{**_DEVICE, "overhead_us": 5.0, "launch_us": 3.0}, {**_DEVICE, "name": "other"}],
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
_EFFICIENCY = {
    "format": "placeto.efficiency/1",
    "constant": 0.5,
    "constants": {"cpu": 0.25},
    "sustained": {"p100": 0.75},
    "same": {"p40": "p100"},
    "entries": [
        {"device": "p100", "dtype": "float32", "kind": "mm", "compute": 0.8, "memory": 0.7, "fixed_us": 4.0}
        | {"slope": 0.1, "ratios": [1.0, 9.0]}
    ],
}
_STAGES = [
    {"first_layer": layer, "replicas": [{"device": f"gpu:{layer}", "micro_batches": [0, 1]}], "sharding": layer}
    for layer in range(2)
]
_PLAN = {
    "format": "placeto.plan/2",
    **{"kind": "pipeline", "shape": "2 stages", "micro_batches": 2, "order": "own list", "run_by": "torch", "batch": 4},
    **{"step_us": 2.5, "room": 10**9, "fits": True, "cluster_hash": load_cluster("2xp100").hash},
    "memory": {"weights": 1, "gradients": 2, "optimizer": 3, "activations": 4, "received": 0},
    "plan": {
        **{"layers": 2, "stages": _STAGES, "whole_modules": True, "recomputed": ["net.0"], "width": 1},
        "chunks": {"gpu:0": ["0F0", "0F1", "0B0", "0B1"], "gpu:1": ["1F0", "1B0", "1F1", "1I1", "1W1"]},
    },
    "placement": _PLACEMENT,
}
_CONFIG = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "vocab_size": 40},
    **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"hidden_act": "silu", "rope_theta": 1e4, "tie_word_embeddings": False, "pad_token_id": None},
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}
_MACHINE = [
    *(f"GPU {i}: Tesla V100-SXM2-16GB (UUID: GPU-{i})" for i in range(2)),
    *("      GPU0   GPU1   CPU Affinity", "GPU0    X     NV2    0-19", "GPU1   NV2     X     0-19"),
]
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
        change_value(state, rng)
    elif places := list(places_of(state)):
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


def _use_efficiency(costs: Efficiency, path: Path) -> None:
    with suppress(GraphError, CostsError):  # times that are too long
        PlacementProblem(ComputationGraph.from_ops("g", _OPS), load_cluster("2xp100"), costs)


def _use_plan(plan: PlanFile | None, path: Path) -> None:
    if plan is None:  # a file of another format
        return
    with suppress(PlacementError):  # for another graph or cluster
        plan.check_cluster(load_cluster("2xp100"))
        plan.placement_with_plan().plan_on(load_cluster("2xp100"))
    save_plan(plan, path)
    assert load_plan(path) == plan


def _read_config(path: Path) -> Any:
    if not is_config(str(path)):
        raise UsageError(f"{path}: no config.json of transformers")
    return make_model(str(path), 1, 8)


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
            data = change_bytes(data, rng)
    return data, suffix


def _json(documents: tuple[Any, ...], read: Any, error: type[ValueError], use: Any) -> Format:
    return Format(documents, ".json", read, error, use, change_value)


def _lines(lines: list[str], suffix: str, module: Any) -> Format:
    return Format((lines,), suffix, module.load, GraphError, _use_graph, change_lines)


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
    "efficiency": _json((_EFFICIENCY,), load_efficiency, CostsError, _use_efficiency),
    "plan": _json((_PLAN,), load_plan, PlacementError, _use_plan),
    "machine": Format((_MACHINE,), ".txt", load_machine, ClusterError, _use_cluster, change_lines),
    "config": _json((_CONFIG,), _read_config, UsageError, lambda model, path: None),
    "dnn-partitioning": _json((_WORKLOAD,), dnn_partitioning.load, GraphError, _use_graph),
    "PipeDream": _lines(_PROFILE, ".graph.txt", pipedream),
    "DOPPLER": _lines(_DOPPLER, "nodes.txt", doppler),
    "STG": _lines(_STG, ".stg", stg),
    "weights": Format(
        (_SAVED,), ".safetensors", load_placer, TrainingError, _use_placer, change_value, _weights, 1 / 2
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
