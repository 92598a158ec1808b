"""Graphs from files of other programs.

An importer is a module with a `recognises` and a `load` function, and one line in `IMPORTERS`.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from placeto.formats.graphs_of_others import dnn_partitioning, doppler, pipedream, stg
from placeto.formats.onnx_import import onnx_model

IMPORTERS: dict[str, ModuleType] = {
    "pipedream": pipedream,
    "dnn-partitioning": dnn_partitioning,
    "doppler": doppler,
    "onnx": onnx_model,
    "stg": stg,
}
"""Name of a format -> its importer, in the order in which importers are tried on a file."""


def find_importer(path: str | Path) -> ModuleType | None:
    """Return the importer that recognises a file; None if none does, as for Placeto's own graph files.

    Raises:
        OSError: the file can't be read.
    """
    return next((importer for importer in IMPORTERS.values() if importer.recognises(Path(path))), None)
