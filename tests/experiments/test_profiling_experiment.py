"""The experiment of profiling, on two tiny models."""

import pytest
import torch

from experiments.profiling import HEAD, ProfilingConfig, main
from placeto.runtime.steps import RealStep, real_training
from tests.captures import Shared, mlp


def models() -> list[RealStep]:
    return [real_training(m, [torch.randn(4, 8)], lambda y: y.square().mean()) for m in (mlp(), Shared())]


def test_a_row_for_each_model(capsys: pytest.CaptureFixture[str]) -> None:
    main(ProfilingConfig(seconds=0.1, loop_seconds=0.001), models)
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[0] == HEAD
    assert [row[0] for row in rows[2:]] == ["Sequential", "Shared"]
    for row in rows[2:]:
        assert all(float(ratio) > 0 for ratio in row[-4:])
