"""Cost models by name, and from files of any of their formats."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from placeto.errors import CostsError
from placeto.problem.costs import efficiency, profiled
from placeto.problem.costs.cost_model import CostModel
from placeto.problem.costs.roofline import ROOFLINE
from placeto.problem.json_files import read_json
from placeto.problem.messages import quote

NAMES = ("efficiency", "roofline")
_FORMATS: dict[str, Callable[[str | Path], CostModel]] = {
    efficiency.FORMAT: efficiency.load_efficiency,
    profiled.FORMAT: profiled.load_profiled,
}
"""Format of a file of costs -> the function that reads it."""


def load_costs(name_or_path: str | Path) -> CostModel:
    """Return a cost model by name, "efficiency" or "roofline", or from a file (``.json``, ``.json.gz``).

    Files have the format "placeto.efficiency/1" or "placeto.costs/1".

    Raises:
        CostsError: there is no cost model of this name, or no file of these formats; the message says what would be
            valid.
        OSError: the file can't be read.
    """
    if not isinstance(name_or_path, str | PathLike):
        known = f"one of {', '.join(NAMES)}, or the path of a .json file"
        raise CostsError(f"costs must be a cost model, {known}, not {quote(name_or_path)}")
    if str(name_or_path) == "roofline":
        return ROOFLINE
    if str(name_or_path) == "efficiency":
        return efficiency.EFFICIENCY
    if not str(name_or_path).endswith((".json", ".json.gz")):
        known = ", ".join(NAMES)
        raise CostsError(f"unknown costs {quote(str(name_or_path))}: known are {known}, or name a .json file")
    if not Path(name_or_path).exists():
        raise CostsError(
            f"costs {quote(str(name_or_path))}: there is no such file; by name there are {', '.join(NAMES)}"
        )
    document = read_json(name_or_path, CostsError)
    form = document.get("format") if isinstance(document, dict) else None
    if not isinstance(form, str) or form not in _FORMATS:
        raise CostsError(f'{name_or_path}: not a file of costs: "format" must be one of {", ".join(_FORMATS)}')
    return _FORMATS[form](name_or_path)
