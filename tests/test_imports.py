"""What placing doesn't need isn't imported: torch, torch-geometric, tensorboard and matplotlib take seconds to load."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = "torch", "torch_geometric", "tensorboard", "matplotlib", "transformers", "onnx", "ortools"
CLUSTER = "--cluster", "2xp100"


def imported_by(code: str, *arguments: object) -> set[str]:
    """Modules that a process has imported when it is done with some code; it sees the arguments."""
    code = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def imported_by_command(*arguments: object) -> set[str]:
    run = "from placeto.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit as stop: assert not stop.code"
    return imported_by(run, *arguments)


def models(names: set[str]) -> set[str]:
    """Modules of graph families whose models torch builds."""
    light = {f"graphs.{name}" for name in ("cache", "family", "models", "shipped", "store", "training_step")}
    return {name for name in names if name.startswith("graphs.")} - light


def test_placing_a_file_and_simulating_the_placement(graph_file: str, tmp_path: Path) -> None:
    placement = tmp_path / "placement.json"
    on = (*CLUSTER, "--simulations", 20, "-o", placement)
    assert not imported_by_command("place", graph_file, *on) & set(HEAVY)
    assert not imported_by_command("simulate", graph_file, *CLUSTER, "--placement", placement) & set(HEAVY)


def test_placing_an_onnx_file_with_ops_that_nobody_counts(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8]) for name in "xy")
    node = onnx.helper.make_node("Mine", ["x"], ["y"], domain="own")
    opset = onnx.helper.make_opsetid("own", 1)
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y]), opset_imports=[opset])
    onnx.save(model, tmp_path / "net.onnx")
    names = imported_by_command("place", tmp_path / "net.onnx", *CLUSTER, "--placer", "single")
    assert {"formula", "onnx.own.Mine"} < names  # of the note on stderr
    assert not names & set(HEAVY)


def test_comparing_placers_on_a_file_and_writing_a_page(graph_file: str, tmp_path: Path) -> None:
    placers = ("--placers", "etf,placeto", "--simulations", 20, "--seeds", 1, "--processes", 1)
    assert not imported_by_command("evaluate", graph_file, *CLUSTER, *placers, "-o", tmp_path / "t.json") & set(HEAVY)
    page = ("--placer", "etf", "--report", tmp_path / "page.html")
    assert not imported_by_command("place", graph_file, *CLUSTER, *page) & set(HEAVY)


def test_placing_a_graph_that_comes_with_the_package() -> None:
    names = imported_by_command("place", "cifar10:test:3", *CLUSTER, "--simulations", 30)
    assert not names & set(HEAVY)
    assert models(names) == set()


def test_naming_a_model_imports_its_family_alone() -> None:
    names = imported_by("from placeto.placers import load_family; assert load_family('bert').splits['test'] > 0")
    assert models(names) == {"graphs.bert", "graphs.microbatches"}
    assert "torch" in names


def test_names_of_families_import_none_of_them() -> None:
    names = imported_by("from placeto.placers import families; assert 'bert' in families()")
    assert not names & set(HEAVY)
    assert models(names) == set()


def test_settings_and_checkpoints_of_placers_that_learn() -> None:
    names = imported_by("from placeto.training import default_config, load_checkpoint; load_checkpoint('pretrained')")
    assert "torch" in names
    assert not names & {"torch_geometric", "tensorboard", "matplotlib"}


def test_the_package_itself_is_light() -> None:
    names = imported_by("import placeto, placeto.cli.command")
    assert not names & {*HEAVY, "numba", "scipy", "networkx"}
