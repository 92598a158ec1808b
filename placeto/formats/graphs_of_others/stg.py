"""Task graphs of the Standard Task Graph Set (Tobita and Kasahara, Journal of Scheduling 5, 2002), as ``.stg``.

    3                 how many tasks, the dummies at both ends not included
    0 0 0             task 0 takes no time and needs nothing
    1 20 1 0          task 1 takes 20 and needs task 0
    2 15 1 0
    3 10 2 1 2
    4 0 1 3
    # what follows a "#" is no part of the graph

With communication each task needed has its time beside it, on the task's line or each on a line of its own:

    3 10 2
      1 5
      2 7
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placeto.errors import GraphError
from placeto.formats.graphs_of_others.lines import plain_name, read_lines
from placeto.problem.graph import ComputationGraph
from placeto.problem.messages import quote, within

_DUMMIES = 2


def recognises(path: Path) -> bool:
    """Whether a file's name ends in ``.stg`` or ``.stg.gz``."""
    return plain_name(path).endswith(".stg")


def load(path: str | Path) -> ComputationGraph:
    """Read a graph: it has an op for each task, dummies included.

    A unit of time becomes a microsecond. An op takes its task's time on all kinds of device. A communication time
    becomes the bytes of an output, which all tasks with the same communication time read. So on equal devices whose
    links are free, with a bandwidth of 1 byte/us and no latency, makespans are in the file's units.

    Raises:
        GraphError: not such a file; the message names the file and the line or task.
        OSError: the file can't be read.
    """
    text = read_lines(path, "task graph")
    lines = [(row, line.partition("#")[0].split()) for row, line in enumerate(text, start=1)]
    with within(GraphError, path):
        ops = _ops([(row, words) for row, words in lines if words])
        return ComputationGraph.from_ops(plain_name(path).removesuffix(".stg"), ops, "inference")


def _ops(lines: list[tuple[int, list[str]]]) -> list[dict[str, Any]]:
    if not lines:
        raise GraphError("not a task graph: it has no line")
    count = _whole(lines[0][1][0], lines[0][0])  # the prototype set also has a number of processors here
    tasks: dict[int, tuple[float, list[tuple[int, float]], int]] = {}  # number -> time, needed tasks, line
    cursor = 1
    while cursor < len(lines):
        row, words = lines[cursor]
        cursor += 1
        if len(words) < 3:
            raise GraphError(f"line {row}: must be a task's number, its time and how many tasks it needs")
        task, needs = _whole(words[0], row), _whole(words[2], row)
        if task in tasks:
            raise GraphError(f"line {row}: task {quote(task)} is there twice")
        words, pairs = [words[1], *words[3:]], []
        if len(words) == 1 + needs:
            pairs = [(word, "0") for word in words[1:]]
        elif len(words) == 1 + 2 * needs:
            pairs = list(zip(words[1::2], words[2::2], strict=True))
        elif len(words) == 1 and all(len(below) == 2 for _, below in lines[cursor : cursor + needs]):
            pairs = [(below[0], below[1]) for _, below in lines[cursor : cursor + needs]]
            cursor += needs
        if len(pairs) != needs:
            raise GraphError(f"line {row}: task {quote(task)} must name the {quote(needs)} tasks that it needs")
        tasks[task] = _number(words[0], row), [(_whole(src, row), _number(us, row)) for src, us in pairs], row
    if not count <= len(tasks) <= count + _DUMMIES:
        raise GraphError(f"line {lines[0][0]}: says {quote(count)} tasks, but {len(tasks)} follow")
    width = len(str(max(tasks, default=0)))
    ops = {task: _op(f"task{task:0{width}}", time) for task, (time, _, _) in tasks.items()}
    outputs: dict[int, dict[float, int]] = {task: {} for task in tasks}  # time to another device -> which output
    for task, (_, needed, row) in tasks.items():
        for src, us in needed:
            if src not in ops:
                raise GraphError(f"line {row}: task {quote(task)} needs task {quote(src)}, which is not there")
            ops[task]["inputs"].append([ops[src]["name"], outputs[src].setdefault(us, len(outputs[src]))])
    for task, sizes in outputs.items():
        ops[task]["outputs"] = list(sizes)
    return list(ops.values())


def _op(name: str, time: float) -> dict[str, Any]:
    return {"name": name, "inputs": [], "time_us": {"*": time}}


def _whole(word: str, row: int) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 9):
        raise GraphError(f"line {row}: must be a whole number below 10^9, not {quote(word)}")
    return int(word)


def _number(word: str, row: int) -> float:
    try:
        return float(word)
    except ValueError:
        raise GraphError(f"line {row}: must be a time, not {quote(word)}") from None
