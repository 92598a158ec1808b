"""The example trains its model in two processes, and their gradients are those of the whole model."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plan_and_run_a_pipeline.py"


@pytest.mark.slow
def test_the_pipeline_trains_as_the_whole_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    printed = runpy.run_path(str(EXAMPLE))["main"]("2xv100", [2], tmp_path / "pipeline", 2)
    off = [float(number) for number in re.findall(r"gradients, off by (\S+) at most", printed)]
    assert len(off) >= 2
    assert max(off) < 1e-6
    first, second = (float(loss) for loss in re.findall(r"^step \d: loss (\S+),", printed, re.MULTILINE))
    assert second < first
