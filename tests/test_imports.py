"""What placing doesn't need isn't imported: torch, torch-geometric, tensorboard and matplotlib take seconds to load.

One process does all that needs no torch, step by step, so that Python and numba are loaded once.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"torch", "torch_geometric", "tensorboard", "matplotlib", "transformers", "onnx", "ortools"}
LIGHT = {f"graphs.{name}" for name in ("cache", "family", "models", "shipped", "store", "training_step")}
ON = "--cluster", "2xp100"
RUN = "from placeto.cli import main\ntry: main({arguments!r})\nexcept SystemExit as stop: assert not stop.code"
TELL = "print('imported', *sys.modules, file=sys.stderr)"


def imported_after(*steps: str) -> list[set[str]]:
    """Modules that one process has imported after each step of code."""
    code = "\n".join(("import sys", *(f"{step}\n{TELL}" for step in steps)))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    told = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("imported ")]
    assert len(told) == len(steps)
    return [set(names) for names in told]


def command(*arguments: object) -> str:
    return RUN.format(arguments=[*map(str, arguments)])


def models(names: set[str]) -> set[str]:
    """Modules of graph families whose models torch builds."""
    return {name for name in names if name.startswith("graphs.")} - LIGHT


def onnx_file(path: Path) -> Path:
    """A file with an op that nobody counts."""
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8]) for name in "xy")
    node = onnx.helper.make_node("Mine", ["x"], ["y"], domain="own")
    opset = onnx.helper.make_opsetid("own", 1)
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), opset_imports=[opset]), path)
    return path


def test_placing_files_and_graphs_that_come_with_the_package(graph_file: str, tmp_path: Path) -> None:
    few, placement = ("--simulations", 20), tmp_path / "placement.json"
    placers = "--placers", "etf,placeto", "--seeds", 1, "--processes", 1
    package, *others = imported_after(
        "import placeto, placeto.cli.command",
        "from placeto.placers import families; assert 'bert' in families()",
        command("place", graph_file, *ON, *few, "-o", placement),
        command("simulate", graph_file, *ON, "--placement", placement),
        command("place", onnx_file(tmp_path / "net.onnx"), *ON, "--placer", "single"),
        command("evaluate", graph_file, *ON, *placers, *few, "-o", tmp_path / "t.json"),
        command("place", graph_file, *ON, "--placer", "etf", "--report", tmp_path / "page.html"),
        command("place", "cifar10:test:3", *ON, "--simulations", 30),
    )
    assert not package & (HEAVY | {"numba", "scipy", "networkx"})
    for names in others:
        assert not names & HEAVY
        assert models(names) == set()


def test_checkpoints_need_torch_and_a_model_its_family_alone() -> None:
    checkpoint, model = imported_after(
        "from placeto.training import default_config, load_checkpoint; load_checkpoint('pretrained')",
        "from placeto.placers import load_family; assert load_family('bert').splits['test'] > 0",
    )
    assert "torch" in checkpoint
    assert not checkpoint & {"torch_geometric", "tensorboard", "matplotlib"}
    assert models(model) == {"graphs.bert", "graphs.microbatches"}
