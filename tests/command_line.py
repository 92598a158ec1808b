"""Commands run in this process, and a graph and a module for them."""

from pathlib import Path

import pytest

from placeto import cli

SHARED = Path(__file__).parents[2] / "shared" / "data"
OPS = [
    {"name": "a", "type": "mm", "outputs": [1000], "module": "head", "time_us": {"*": 300.1}, "param_bytes": 40},
    {"name": "b", "type": "mm", "inputs": [["a", 0]], "outputs": [1000], "module": "left", "time_us": {"*": 700.7}},
    {"name": "c", "type": "mm", "inputs": [["a", 0]], "outputs": [1000], "module": "right", "time_us": {"*": 800.3}},
    {"name": "d", "type": "add", "inputs": [["b", 0], ["c", 0]], "module": "tail", "time_us": {"*": 10.9}},
]
NET = """import torch
from torch import nn

def net(layers=4):
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(layers)))
    return model, [torch.randn(16, 512)], nn.functional.mse_loss, [torch.randn(16, 512)]
"""


def run(*arguments: object) -> int:
    """Exit status of the command."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of a user error, which must be one line and exit status 2."""
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: "), captured.err
    assert captured.err.count("\n") == 1, captured.err
    assert captured.out == ""
    return captured.err
