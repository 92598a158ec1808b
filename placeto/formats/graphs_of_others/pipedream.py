"""Profiles of PipeDream (Narayanan et al., SOSP 2019): layers with measured times, as ``.graph.txt``.

A line is a layer, or, after a tab, an edge between two:

    node4 -- Embedding(32320, 1024, padding_idx=0) -- forward_compute_time=0.073, backward_compute_time=6.949, activation_size=6291456.0, parameter_size=132382720.000
        node1 -- node4

Times are in milliseconds on one GPU, sizes in bytes; an activation size may be a list, ``[6291456.0; 131072.0]``. In
what PipeDream's optimizer writes, ``-- stage_id=0`` follows, which is not read.
"""  # noqa: E501

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placeto.errors import GraphError
from placeto.formats.graphs_of_others.lines import content, plain_name, read_lines
from placeto.problem.graph import ComputationGraph
from placeto.problem.messages import quote, within

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_US_PER_MS = 1000.0
_MOST_TENSORS = 100  # of one activation, as a consumer may read them all


def recognises(path: Path) -> bool:
    """Whether a file's name ends in ``graph.txt``, or it is a ``.txt`` file that begins with a layer."""
    name = plain_name(path)
    begins = rb"\s*\S+ -- .+ -- forward_compute_time="
    return name.endswith("graph.txt") or (name.endswith(".txt") and re.match(begins, content(path)[:1000]) is not None)


def load(path: str | Path) -> ComputationGraph:
    """Read one training step from a profile: it has a forward and a backward op for each layer, colocated.

    Layer ``node4`` becomes the op "node4", which holds the parameters, and the op "node4/grad". Each takes its measured
    time on every kind of device, even on CPUs, though the times were measured on a GPU. An edge carries the
    activation forward. For each edge, another one carries a gradient of the same size back: "node5/grad" has an output
    for each input of its layer. "node4/grad" also reads node4's own activation, as the loss does at the end. If an
    activation is a list of tensors, a layer ``__getitem__(i)`` reads the i-th, and any other layer reads all of them. A
    layer that takes no time and has no parameters (a view, an addition in place) is colocated with its first producer,
    or with nothing if that producer is an input.

    Inputs have no backward op and take no time, as upstream measured the loading of data there. Forward ops are in the
    order of the layers' numbers; behind them come the backward ops, in the opposite order.

    Raises:
        GraphError: not such a profile; the message names the file and the line or layer.
        OSError: the file can't be read.
    """
    lines = read_lines(path, "PipeDream profile")
    name = plain_name(path).removesuffix("graph.txt").removesuffix(".txt").rstrip(".") or "pipedream"
    with within(GraphError, path):
        return ComputationGraph.from_ops(name, _ops(*_parse(lines)))


@dataclass(frozen=True)
class _Layer:
    name: str
    type: str  # description up to its arguments
    arguments: str
    forward_us: float
    backward_us: float
    activations: tuple[int, ...]  # bytes of each tensor
    param_bytes: int

    @property
    def is_input(self) -> bool:
        return re.fullmatch(r"Input\d*", self.type) is not None

    @property
    def is_free(self) -> bool:
        return self.forward_us == self.backward_us == self.param_bytes == 0


def _parse(lines: list[str]) -> tuple[dict[str, _Layer], list[tuple[str, str]]]:
    layers: dict[str, _Layer] = {}
    edges: dict[tuple[str, str], int] = {}  # -> number of its line
    for number, line in enumerate(lines, start=1):
        parts = line.split(" -- ")
        if not line:
            continue
        if len(parts) == 2:
            edges.setdefault((parts[0], parts[1]), number)
            continue
        with within(GraphError, f"line {number}"):
            layer = _layer(line)
            if layers.setdefault(layer.name, layer) is not layer:
                raise GraphError(f"layer {quote(layer.name)} is there twice")
    for (src, dst), number in edges.items():
        for name in (src, dst):
            if name not in layers:
                raise GraphError(f"line {number}: edge to or from {quote(name)}, which is no layer of the file")
    if not layers:
        raise GraphError("not a PipeDream profile: it has no layer")
    return dict(sorted(layers.items(), key=lambda item: _natural(item[0]))), sorted(edges, key=lambda e: edges[e])


def _layer(line: str) -> _Layer:
    match = re.fullmatch(r"(\S+) -- (.*) -- (.*)", re.sub(r" -- stage_id=-?\d+$", "", line))
    if match is None:
        raise GraphError('neither a layer ("name -- description -- times and sizes") nor an edge ("name -- name")')
    name, description, numbers = match.groups()
    fields = dict(re.findall(r"\b(\w+)=(\[[^][]*\]|[^,]*)", numbers))
    missing = [field for field in _FIELDS if field not in fields]
    if missing:
        raise GraphError(f"layer {quote(name)} has no {missing[0]}")
    forward, backward = (_number(fields[field], field, name) * _US_PER_MS for field in _FIELDS[:2])
    kind, _, arguments = description.partition("(")
    sizes = re.split("[;,]", fields["activation_size"].strip().strip("[]"))
    if len(sizes) > _MOST_TENSORS:
        raise GraphError(
            f"layer {quote(name)}: activation_size must be at most {_MOST_TENSORS} sizes, not {len(sizes)}"
        )
    layer = _Layer(
        name=name,
        type=kind,
        arguments=arguments.removesuffix(")"),
        forward_us=forward,
        backward_us=backward,
        activations=tuple(math.ceil(_number(size, "activation_size", name)) for size in sizes),
        param_bytes=math.ceil(_number(fields["parameter_size"], "parameter_size", name)),
    )
    return _Layer(**{**vars(layer), "forward_us": 0.0, "backward_us": 0.0}) if layer.is_input else layer


def _number(text: str, field: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise GraphError(f"layer {quote(name)}: {field} must be a finite number >= 0, not {quote(text.strip())}")
    return value


def _natural(name: str) -> tuple[str, bool, int, str]:
    """Return a sort key that compares the numbers at the ends of names, so that node2 comes before node10."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :].lstrip("0")
    return stem, stem != name, len(digits), digits


def _ops(layers: dict[str, _Layer], edges: list[tuple[str, str]]) -> list[dict[str, Any]]:
    forward = {name: _record(layer, name, layer.forward_us, list(layer.activations)) for name, layer in layers.items()}
    backward = {
        name: _record(layer, f"{name}/grad", layer.backward_us, [])
        for name, layer in reversed(layers.items())
        if not layer.is_input
    }
    first: dict[str, str] = {}  # layer -> its first producer
    for src, dst in edges:
        first.setdefault(dst, src)
        for output in _reads(layers[src], layers[dst]):
            forward[dst]["inputs"].append([src, output])
            if src in backward and dst in backward:
                gradients = backward[dst]["outputs"]
                backward[src]["inputs"].append([f"{dst}/grad", len(gradients)])
                gradients.append(layers[src].activations[output])
    for name, record in backward.items():
        record["inputs"] += [[name, output] for output in range(len(layers[name].activations))]
        record["type"] += ".backward"
    homes = _homes(layers, first)
    for name, layer in layers.items():
        forward[name]["param_bytes"] = layer.param_bytes
        home = homes[name]
        if not layers[home].is_free:
            for direction in (forward, backward):
                if name in direction:
                    direction[name]["colocation"] = home
    return [*forward.values(), *backward.values()]


def _record(layer: _Layer, name: str, time_us: float, outputs: list[int]) -> dict[str, Any]:
    return {"name": name, "type": layer.type, "outputs": outputs, "inputs": [], "time_us": {"*": time_us}}


def _reads(producer: _Layer, consumer: _Layer) -> list[int]:
    """Return the numbers of those of the producer's tensors that the consumer reads."""
    count = len(producer.activations)
    if consumer.type == "__getitem__" and consumer.arguments in map(str, range(-count, count)):
        return [int(consumer.arguments) % count]
    return list(range(count))


def _homes(layers: dict[str, _Layer], first: dict[str, str]) -> dict[str, str]:
    """Layer -> the layer with which it is colocated: itself or, if it `is_free`, the home of its first producer."""
    homes: dict[str, str] = {}
    for name in layers:
        passed: dict[str, None] = {}
        while name not in homes and layers[name].is_free and name in first and name not in passed:
            passed[name] = None  # a name that is met again is in a cycle, which is refused later
            name = first[name]
        homes |= dict.fromkeys([*passed, name], homes.get(name, name))
    return homes
