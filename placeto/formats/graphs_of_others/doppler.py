"""Graphs of DOPPLER (Yao et al., ICLR 2026, arXiv 2505.23131), as ``chain_mm_112nodes.txt``.

    5                 how many nodes, inputs included
    0, 1,             the inputs
    0, 0, 1           where the arcs begin
    1, 2, 2           where they end
    100,400           node 0: its time, and the time that its output takes to another device, in 1e-10 units
    200,800
    100,400

Arcs number the nodes from 0, in the order of the nodes' lines. Inputs have no line, and no arc begins or ends at one.
Behind its times a line may say what its node computes, as in ``100,400,einsummable``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from placeto.errors import GraphError
from placeto.formats.graphs_of_others.lines import content, plain_name, read_lines
from placeto.problem.graph import ComputationGraph
from placeto.problem.messages import quote, within


def recognises(path: Path) -> bool:
    """Whether a file's name ends in ``nodes.txt``, or it is a ``.txt`` file of a number, then a list of numbers."""
    name = plain_name(path)
    begins = rb"\s*\d+\s*\n\s*\d+\s*,"
    return name.endswith("nodes.txt") or (name.endswith(".txt") and re.match(begins, content(path)[:200]) is not None)


def load(path: str | Path) -> ComputationGraph:
    """Read a graph: it has an op for each node but the inputs, which take no time and are on all devices.

    A time of 1e-10 units becomes a microsecond, so that nothing is rounded. An op takes its node's time on all kinds of
    device, and the node's communicating time becomes the bytes of the op's output. So on equal devices whose links are
    free, with a bandwidth of 1 byte/us and no latency, makespans are those of the published simulator, times 1e10.

    Raises:
        GraphError: not such a file; the message names the file and the line or node.
        OSError: the file can't be read.
    """
    lines = read_lines(path, "DOPPLER graph")
    with within(GraphError, path):
        return ComputationGraph.from_ops(plain_name(path).removesuffix(".txt"), _ops(lines), "inference")


def _ops(lines: list[str]) -> list[dict[str, Any]]:
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) < 5:
        raise GraphError(f"not a DOPPLER graph: it has {len(lines)} lines, where four come before those of the nodes")
    count, inputs_of_graph, sources, destinations = (_numbers(line, row) for row, line in enumerate(lines[:4], start=1))
    nodes = lines[4:]
    if count != [len(inputs_of_graph) + len(nodes)]:
        counted = f"{len(inputs_of_graph)} inputs and {len(nodes)} lines of nodes"
        raise GraphError(f"line 1: must be how many nodes there are, not {quote(lines[0])}: {counted} follow")
    if len(sources) != len(destinations):
        raise GraphError(f"line 4: {len(destinations)} ends of arcs, but line 3 has {len(sources)} beginnings")
    width = len(str(len(nodes)))
    names = [f"node{number:0{width}}" for number in range(len(nodes))]  # the same order as numbers and as strings
    inputs: list[dict[str, None]] = [{} for _ in nodes]
    for src, dst in zip(sources, destinations, strict=True):
        for row, end in ((3, src), (4, dst)):
            if not 0 <= end < len(nodes):
                raise GraphError(f"line {row}: an arc's end must be from 0 to {len(nodes) - 1}, not {quote(end)}")
        inputs[dst][names[src]] = None
    ops = []
    for number, line in enumerate(nodes):
        computing, communicating = _node(line, number + 5)
        op = {"name": names[number], "type": _type(line), "time_us": {"*": computing}, "outputs": [communicating]}
        ops.append(op | {"inputs": [[name, 0] for name in inputs[number]]})
    return ops


def _numbers(line: str, row: int) -> list[int]:
    words = [word for word in line.split(",") if word.strip()]
    try:
        return [int(word) for word in words]
    except ValueError:
        raise GraphError(f"line {row}: must be whole numbers with commas between, not {quote(line)}") from None


def _node(line: str, row: int) -> tuple[float, float]:
    try:
        computing, communicating = (float(word) for word in line.split(",", 2)[:2])
    except ValueError:
        rule = "computing and communicating time with a comma between"
        raise GraphError(f"line {row}: must be {rule}, not {quote(line)}") from None
    return computing, communicating


def _type(line: str) -> str:
    """Return the op type of a node: the word behind the times in its line, or "op" if there is none."""
    word = "".join(line.split(",", 3)[2:3]).strip()
    return word if re.fullmatch(r"[A-Za-z_][\w.-]{,99}", word, re.ASCII) else "op"
