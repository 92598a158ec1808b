"""Mutated files of every format: each is read, or refused by the format's own error in one line.

python -m experiments.fuzz [--documents 50000] [--seed 0] [--out runs/fuzz]

A fifth of the documents are ONNX models; `experiments.fuzz_documents` says how documents are changed. One process reads
them all; it may take 1 GB more than it has with everything loaded, and 5 s for a document, and is started again when it
dies. What is accepted must survive what follows: graphs and clusters are hashed, written and simulated, or refused by
the problem; placements become devices; evaluations are summed up; costs price a graph; weights place one. Another
error, a warning, a message of several lines or over 500 characters, and a death count as "else".

Seconds are those of the clock. Memory is the largest that was resident: of the process that reads, and of that in
which it lets ONNX be parsed.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.command import command
from experiments.fuzz_documents import FORMATS, HOW, mutated
from experiments.tables import machine, markdown, publish
from placeto.formats.onnx_import.apart import Apart, DiedError

READER = Apart("experiments.fuzz")
MEMORY, SECONDS = 2**30, 5.0
_ONNX = 1 / 5  # of all documents
_LONGEST_MESSAGE = 500  # characters, without the path
_COMPILING = 600.0  # seconds that the first documents may take


def outcome(name: str, path: Path) -> str:
    """ "accepted", "refused", or what else came of a file."""
    found = FORMATS[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # libraries that are imported here may warn
            warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)
            try:
                content = found.read(path)
            except found.error as refusal:
                message = str(refusal).removeprefix(f"{path}: ")
                good = message != str(refusal) and len(message) <= _LONGEST_MESSAGE and message.isprintable()
                return "refused" if good else f"a bad message: {str(refusal)[:200]!r}"
            found.use(content, path.with_name("again.json"))
            return "accepted"
    except Exception as problem:
        return f"{type(problem).__name__}: {str(problem)[:200]}"


def judge(name: str, path: str) -> list[Any]:
    """The outcome of a file, and bytes resident at most here, and in processes that were started here."""
    result = outcome(name, Path(path))
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    running = [_peaks(child) for child in Path("/proc/self/task/").glob("*/children")]
    return [result, _peak("self"), max([ended, *running])]


def _peaks(children: Path) -> int:
    """Bytes resident at most in one of the processes that a thread has started; 0 where it isn't known."""
    with suppress(OSError):
        return max(map(_peak, children.read_text().split()), default=0)
    return 0


def _peak(process: str) -> int:
    """Bytes resident at most in a process; what `getrusage` says of it counts the process that started it as well."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@dataclass
class Seen:
    """What came of documents of a kind."""

    counts: Counter[str]
    slowest: float = 0.0  # s
    peak: int = 0  # bytes

    def line(self, name: str, how: str) -> list[str]:
        """A line of the table."""
        kinds = "accepted", "refused", "else"
        numbers = [sum(self.counts[kind] for kind in kinds), *(self.counts[kind] for kind in (*kinds, "deaths"))]
        return [name, how, *map(str, numbers), f"{self.slowest:.2f}", f"{self.peak / 1e6:.0f}"]


def read_apart(name: str, path: Path, seen: Seen) -> str:
    """What became of a file that another process reads; the process is made ready again if it dies."""
    began = time.monotonic()
    try:
        result, own, others = READER.call("judge", name, str(path), seconds=SECONDS, memory=MEMORY)
        seen.peak = max(seen.peak, own + others)
    except DiedError as problem:
        result = f"the process that reads {problem}"
        seen.counts["deaths"] += 1
        make_ready(path.parent)
    else:
        seen.slowest = max(seen.slowest, time.monotonic() - began)
    seen.counts[result if result in ("accepted", "refused") else "else"] += 1
    return str(result)


def make_ready(folder: Path) -> None:
    """Let the process that reads load what it needs, with a valid document of each kind.

    What is not compiled yet is compiled by another process before: that takes more memory than documents may.
    """
    for memory in (8 * MEMORY, MEMORY):
        READER.stop()
        for name, found in FORMATS.items():
            for document in found.documents:
                path = folder / f"valid{found.suffix}"
                path.write_bytes(found.encode(document))
                READER.call("judge", name, str(path), seconds=_COMPILING, memory=memory)


def shares(documents: int) -> Iterator[tuple[str, str, int]]:
    """How many documents of each format are changed in which way."""
    for how in HOW:
        for name, found in FORMATS.items():
            part = _ONNX if name == "ONNX" else (1 - _ONNX) / (len(FORMATS) - 1)
            damaged = round(documents * part * found.share_of_bytes)
            yield name, how, damaged if how == "bytes" else round(documents * part) - damaged


@dataclass(frozen=True)
class FuzzConfig:
    """Mutate, read, count."""

    documents: int = 50_000
    """how many in all, a fifth of them ONNX"""
    seed: int = 0
    """of the mutations"""
    out: Path = Path("runs/fuzz")
    """folder for the table, and for the first document of each kind that came to anything else"""


def main(config: FuzzConfig) -> None:
    """Print the table of counts, and the first example of anything else."""
    config.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(config.seed)
    head = ["documents of", "changed in", "documents", "accepted", "refused", "else", "deaths", "slowest, s", "most MB"]
    lines, examples, total = [head], [], Seen(Counter())
    with tempfile.TemporaryDirectory() as folder:
        make_ready(Path(folder))
        for name, how, count in shares(config.documents):
            seen, seen_else = Seen(Counter()), set()
            for _ in range(count):
                data, suffix = mutated(name, how, rng)
                path = Path(folder) / f"mutated{suffix}"
                path.write_bytes(data)
                result = read_apart(name, path, seen)
                kind = result.partition(":")[0]
                if result not in ("accepted", "refused") and kind not in seen_else:
                    seen_else.add(kind)
                    kept = config.out / f"{name}-{how}-{len(seen_else)}{suffix}"
                    kept.write_bytes(data)
                    examples.append(f"{kept}: {result}")
                path.unlink()
            lines.append(seen.line(name, how))
            total.counts += seen.counts
            total.slowest, total.peak = max(total.slowest, seen.slowest), max(total.peak, seen.peak)
    READER.stop()
    lines.append(total.line("all", ""))
    about = f"Mutated documents, seed {config.seed}; {machine()}. Limits: {MEMORY >> 20} MB more, {SECONDS:g} s."
    publish(config.out, "fuzz", [about, markdown(lines), *examples], None)


if __name__ == "__main__":
    command(main, FuzzConfig, "fuzz", __doc__)
