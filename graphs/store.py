"""The compact form in which captured graphs ship: one ``.zip`` file a family, decoded graph by graph."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np

from placeto.errors import PlacetoError
from placeto.problem.files import atomic_write
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.label_values import LABELS

DATA = Path(__file__).parent / "data"
_ARRAYS = (
    "flops",
    "bytes_accessed",
    "param_bytes",
    "colocation",
    "output_ptr",
    "output_bytes",
    "edge_src",
    "edge_dst",
    "edge_output",
    "trained_bytes",
    "resident_outputs",
    "micro_batches",
    "held_until",
)
_STRINGS = ("op_names", "op_types", "modules", "dtypes", "kernels", "passes")
_NAMES = (
    "module_tensors",
    "module_inputs",
    "called_in",
    "shared_with",
)  # an op may have several names, with tabs between
_DATE = (1980, 1, 1, 0, 0, 0)  # a fixed one, so that equal graphs give equal files


class StoreError(PlacetoError):
    """A file of graphs is damaged, or lacks a graph; the message names the file."""


def save(graphs: Iterable[ComputationGraph], path: Path) -> None:
    """Write graphs (without measured times) as one compressed file, which has the same bytes for the same graphs.

    Raises:
        OSError: the file can't be written.
    """
    with atomic_write(path) as whole, zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for graph in graphs:
            content = {key: getattr(graph, key) for key in _ARRAYS}
            # neighbours differ little: differences compress better than the numbers
            content |= {key: np.diff(content[key], prepend=0) for key in ("output_ptr", "edge_src", "edge_dst")}
            content |= {
                key: _encode(getattr(graph, key)) for key in _STRINGS if set(getattr(graph, key)) != {LABELS.get(key)}
            }
            names = {key: ["\t".join(some) for some in getattr(graph, key)] for key in _NAMES}
            content |= {key: _encode(tuple(joined)) for key, joined in names.items() if any(joined)}
            buffer = BytesIO()
            np.savez(buffer, mode=np.array(graph.mode), **content)
            archive.writestr(zipfile.ZipInfo(graph.name, _DATE), buffer.getvalue(), zipfile.ZIP_DEFLATED, 9)


def load(path: Path, name: str) -> ComputationGraph:
    """Read one graph of a file, e.g. ``load(DATA / "cifar10.zip", "cifar10:test:3")``.

    Raises:
        FileNotFoundError: there is no such file (``python -m graphs regenerate`` writes those of the package).
        StoreError: there is no such graph in it, or the file is damaged.
    """
    with _reading(path):
        return _decode_graph(_archive(path, path.stat().st_mtime_ns).read(name), name)


def read(path: Path) -> ComputationGraph:
    """Read the first graph of a file.

    Raises:
        FileNotFoundError: there is no such file.
        StoreError: the file is damaged.
    """
    with _reading(path), zipfile.ZipFile(BytesIO(path.read_bytes())) as archive:
        names = archive.namelist()
        if not names:
            raise ValueError("it holds no graph")
        return _decode_graph(archive.read(names[0]), names[0])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A context in which any error that a damaged file causes becomes a `StoreError` of one sentence with its path."""
    try:
        yield
    except Exception as problem:  # zip, zlib, numpy and the decoding each raise errors of their own
        if isinstance(problem, OSError) and problem.errno is not None:
            raise  # an error of the system, not of the content
        reason = " ".join(str(problem).split())[:120] or type(problem).__name__
        raise StoreError(f"{path}: damaged, or not a file of graphs ({reason})") from None


def _decode_graph(data: bytes, name: str) -> ComputationGraph:
    with np.load(BytesIO(data)) as stored:
        content = {key: stored[key] for key in _ARRAYS if key in stored}  # older files lack the last four
        content |= {key: _decode(stored[key]) for key in _STRINGS if key in stored}
        names = {key: _decode(stored[key]) for key in _NAMES if key in stored}
        content |= {
            key: tuple(tuple(filter(None, some.split("\t"))) for some in joined) for key, joined in names.items()
        }
        content |= {key: np.cumsum(content[key]) for key in ("output_ptr", "edge_src", "edge_dst")}
        mode = str(stored["mode"])
    return ComputationGraph(name=name, mode=mode, **content)


@lru_cache(maxsize=16)
def _archive(path: Path, modified_ns: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(BytesIO(path.read_bytes()))


def _encode(strings: tuple[str, ...]) -> np.ndarray:
    return np.frombuffer("\n".join(strings).encode(), np.uint8)


def _decode(codes: np.ndarray) -> tuple[str, ...]:
    return tuple(codes.tobytes().decode().split("\n"))
