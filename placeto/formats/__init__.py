"""Files of other programs, and files and pictures for them.

Input: graphs that other programs wrote (PipeDream, dnn-partitioning, DOPPLER, ONNX, Standard Task Graphs), clusters
that nvidia-smi describes, and placement and plan files. Output: placement and plan files, Chrome traces, Gantt charts,
exports and reports. Each format has a module here and a line in a table. `gantt` is only imported where a chart is
drawn, because matplotlib takes a second to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeto.plumbing.lazily import lazily

if TYPE_CHECKING:
    from placeto.formats.chrome_trace import save_chrome_trace
    from placeto.formats.importers import IMPORTERS, find_importer
    from placeto.formats.placement import PlacementFile, load_placement, save_placement

__all__ = [
    "IMPORTERS",
    "PlacementFile",
    "find_importer",
    "load_placement",
    "save_chrome_trace",
    "save_placement",
]

_NAMES = {
    "chrome_trace": ("save_chrome_trace",),
    "importers": ("IMPORTERS", "find_importer"),
    "placement": ("PlacementFile", "load_placement", "save_placement"),
}
__getattr__, __dir__ = lazily(globals(), _NAMES)  # lazy, so that the process of `apart` starts quickly
