"""Mutated files of every format: each is read, or refused by the format's own error in one line.

python -m experiments.fuzz [--documents 50000] [--seed 0] [--out runs/fuzz]

A fifth of the documents are ONNX models; `experiments.fuzz_documents` says how documents are changed. One process reads
them all; it may take 1 GB more than it has with everything loaded, and 5 s for a document, and is started again when it
dies. It parses ONNX itself; a model that ends it is read again as users read it, by a process of its own. What is
accepted must survive what follows: graphs and clusters are hashed, written and simulated, or refused by the problem;
placements become devices; evaluations are summed up; costs price a graph; weights place one. Another error, a warning,
a message of several lines or over 500 characters, and a death count as "else".

Seconds are those of the clock. Memory is the largest that was resident in the process that reads.
"""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from experiments.command import command
from experiments.fuzz_documents import FORMATS, HOW, mutated
from experiments.tables import machine, markdown, publish
from placeto.formats.onnx_import.apart import limits
from placeto.formats.onnx_import.onnx_model import load_here

MEMORY, SECONDS = 2**30, 5.0
_ONNX = 1 / 5  # of all documents
_LONGEST_MESSAGE = 500  # characters, without the path
_COMPILING = 600.0  # seconds that the first documents may take


def outcome(name: str, path: Path, here: bool = False) -> str:
    """ "accepted", "refused", or what else came of a file; `here` lets this process parse ONNX itself."""
    found = FORMATS[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # libraries that are imported here may warn
            warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)
            try:
                content = load_here(path) if here and name == "ONNX" else found.read(path)
            except found.error as refusal:
                message = str(refusal).removeprefix(f"{path}: ")
                good = message != str(refusal) and len(message) <= _LONGEST_MESSAGE and message.isprintable()
                return "refused" if good else f"a bad message: {str(refusal)[:200]!r}"
            found.use(content, path.with_name("again.json"))
            return "accepted"
    except Exception as problem:
        return f"{type(problem).__name__}: {str(problem)[:200]}"


def judge(name: str, path: str, seconds: float, memory: int) -> tuple[str, int]:
    """The outcome of a file, and the bytes that this process had resident at most."""
    with limits(seconds, memory):
        result = outcome(name, Path(path), here=True)
    return result, int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


class Reader:
    """A process that judges one file after the other; it is started again by the next file if one has ended it."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(1, get_context("spawn"))

    def judge(self, name: str, path: Path, seconds: float, memory: int) -> tuple[str, int]:
        """What `judge` returns.

        Raises:
            BrokenProcessPool: the file has ended the process.
        """
        try:
            return self.pool.submit(judge, name, str(path), seconds, memory).result()
        except BrokenProcessPool:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process."""
        self.pool.shutdown()
        self.pool = ProcessPoolExecutor(1, get_context("spawn"))


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


def read_apart(name: str, path: Path, seen: Seen, reader: Reader) -> str:
    """What became of a file that another process reads; the process is made ready again if it dies."""
    began = time.monotonic()
    try:
        result, peak = reader.judge(name, path, SECONDS, MEMORY)
        seen.peak = max(seen.peak, peak)
    except BrokenProcessPool:
        make_ready(path.parent, reader)
        result = outcome(name, path) if name == "ONNX" else "the process that reads died"
        seen.counts["deaths"] += name != "ONNX"
    else:
        seen.slowest = max(seen.slowest, time.monotonic() - began)
    seen.counts[result if result in ("accepted", "refused") else "else"] += 1
    return result


def make_ready(folder: Path, reader: Reader) -> None:
    """Let the process that reads load what it needs, with a valid document of each kind.

    What is not compiled yet is compiled by another process before: that takes more memory than documents may.
    """
    for memory in (8 * MEMORY, MEMORY):
        reader.stop()
        for name, found in FORMATS.items():
            for document in found.documents:
                path = folder / f"valid{found.suffix}"
                path.write_bytes(found.encode(document))
                reader.judge(name, path, _COMPILING, memory)


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
        reader = Reader()
        make_ready(Path(folder), reader)
        for name, how, count in shares(config.documents):
            seen, seen_else = Seen(Counter()), set()
            for _ in range(count):
                data, suffix = mutated(name, how, rng)
                path = Path(folder) / f"mutated{suffix}"
                path.write_bytes(data)
                result = read_apart(name, path, seen, reader)
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
        reader.stop()
    lines.append(total.line("all", ""))
    about = f"Mutated documents, seed {config.seed}; {machine()}. Limits: {MEMORY >> 20} MB more, {SECONDS:g} s."
    publish(config.out, "fuzz", [about, markdown(lines), *examples], None)


if __name__ == "__main__":
    command(main, FuzzConfig, "fuzz", __doc__)
