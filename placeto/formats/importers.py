"""Graphs from files of other programs.

An importer is a module with a `recognises` and a `load` function, and one line in `IMPORTERS`.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from placeto.formats import dnn_partitioning, doppler, onnx_model, pipedream, stg

IMPORTERS: dict[str, ModuleType] = {
    "pipedream": pipedream,
    "dnn-partitioning": dnn_partitioning,
    "doppler": doppler,
    "onnx": onnx_model,
    "stg": stg,
}
"""Name -> importer."""


def find_importer(path: str | Path) -> ModuleType | None:
    """The importer for a file, or None if there is none: it may be a graph file of our own.

    Raises:
        OSError: the file can't be read.
    """
    return next((importer for importer in IMPORTERS.values() if importer.recognises(Path(path))), None)
