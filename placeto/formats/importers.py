"""Graphs from files of other programs.

An importer is a module with a `recognises` and a `load` function, and one line in `IMPORTERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from placeto.formats import dnn_partitioning, doppler, onnx_model, pipedream, stg
from placeto.formats.errors import ImporterError
from placeto.problem.graph import ComputationGraph

__all__ = ["IMPORTERS", "Importer", "ImporterError", "find_importer"]


@dataclass(frozen=True)
class Importer:
    """How to know a kind of file, and how to read it."""

    files: str  # what such a file looks like, for messages
    recognises: Callable[[Path], bool]  # by its name, and by its content where the name says too little
    load: Callable[[str | Path], ComputationGraph]  # raises ImporterError


IMPORTERS: dict[str, Importer] = {
    "pipedream": Importer("PipeDream .graph.txt", pipedream.recognises, pipedream.load),
    "dnn-partitioning": Importer("dnn-partitioning .json", dnn_partitioning.recognises, dnn_partitioning.load),
    "doppler": Importer("DOPPLER nodes.txt", doppler.recognises, doppler.load),
    "onnx": Importer("ONNX .onnx", onnx_model.recognises, onnx_model.load),
    "stg": Importer("Standard Task Graph .stg", stg.recognises, stg.load),
}
"""Name -> importer."""


def find_importer(path: str | Path) -> Importer | None:
    """The importer for a file, or None if there is none: it may be a graph file of our own.

    Raises:
        OSError: the file can't be read.
    """
    return next((importer for importer in IMPORTERS.values() if importer.recognises(Path(path))), None)
