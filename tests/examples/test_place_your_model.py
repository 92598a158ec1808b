"""The example places its model better than one device would run it, and the file that it writes is that placement."""

import runpy
from pathlib import Path

import placeto

EXAMPLE = Path(__file__).parents[2] / "examples" / "place_your_model.py"


def test_it_places_and_writes_what_it_found(tmp_path: Path) -> None:
    result = runpy.run_path(str(EXAMPLE))["main"]("2xv100", 40, tmp_path / "placement.json")
    assert result.fits
    assert result.makespan_us < 0.8 * result.problem.single_device_us
    assert placeto.load_placement(tmp_path / "placement.json").placement == result.devices()
