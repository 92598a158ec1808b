"""Small programs and files that went wrong once, each with its right value: `pytest -m slow` with this file.

They lie beside the source tree, as the data of the experiments do; where they are missing, these tests are skipped.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import fails, run

CASES = Path(__file__).parents[2] / "shared" / "cases"
FILES = CASES / "files"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FILES.is_dir(), reason="these programs are elsewhere")]


def found(pattern: str, printed: str) -> list[tuple[str, ...]]:
    """The groups of all matches, of which there is at least one."""
    matches = [match.groups() for match in re.finditer(pattern, printed)]
    assert matches, printed
    return matches


def near(pattern: str) -> Callable[[str], bool]:
    """All numbers are within 5 % of 1."""
    return lambda printed: all(0.95 <= float(ratio) <= 1.05 for (ratio,) in found(pattern, printed))


def always(pattern: str, right: str) -> Callable[[str], bool]:
    """What the pattern matches is the same everywhere."""
    return lambda printed: {text for (text,) in found(pattern, printed)} == {right}


def equal(pattern: str) -> Callable[[str], bool]:
    """Both groups are equal, as numbers to five digits where they are numbers."""

    def pairs_are_equal(printed: str) -> bool:
        pairs = found(pattern, printed)
        return all(one == other or float(one) == pytest.approx(float(other), rel=1e-5) for one, other in pairs)

    return pairs_are_equal


def refused_for_layers_alone(printed: str) -> bool:
    """The placements that vLLM can't run have a device without layer."""
    lines = printed.splitlines()
    return all("layers (" in line or "has no layer, which vLLM can't do" in line for line in lines if "share" in line)


RIGHT = {
    "51_results_that_the_loss_does_not_read": near(r"\((\d\.\d+)\)"),
    "52_storages_larger_than_their_tensors": near(r", (\d\.\d{3})\n"),
    "53_device_map_argument_changed_in_place": always(r"(\d+) of 8 maps fail", "0"),
    "54_modules_called_inside_others": always(r"(\d+) of 8 maps fail", "0"),
    "56_cluster_file_of_one_gpu": always(r"exit (\d+)", "0"),
    "57_pipeline_placements_that_serving_tools_refuse": refused_for_layers_alone,
    "58_checkpoints_without_early_stop": equal(r"\((\d+), (\d+)\)"),
    "60_config_of_another_class": equal(r"config  .*, '(.* yes)'\]\)\n  factory .*, '(.* yes)'\]"),
    "70_leak_of_compiled_steps": always(r"(Counter\(.*\))", "Counter()"),
    "71_exact_overflow": lambda printed: "Error" not in printed,
    "72_inplace_on_transposed": always(r"differs in (\d+) of 10", "0"),
    "73_m_sct_without_limit": lambda printed: all(float(s) < 120 for (s,) in found(r"placer (\S+)", printed)),
    "74_checkpointed_dropout": equal(r"loss (\S+) from gradients (\S+)"),
}
"""Each program, and whether what it prints is right. The 120 s of 73 are for compiling: the search takes 1 s."""


@pytest.mark.parametrize("name", RIGHT)
def test_programs_print_the_right_values(name: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONWARNINGS": "ignore"}
    program = [sys.executable, str(CASES / f"{name}.py")]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr
    assert RIGHT[name](ran.stdout), ran.stdout


def test_each_program_has_its_right_value() -> None:
    assert {path.stem for path in CASES.glob("[5-9][0-9]_*.py")} == set(RIGHT)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["fits", FILES / "model_type_list.json", "--memory", "24GB"], "has no model_type ['llama']"),
        (["fits", FILES / "layers_2e63.json", "--memory", "24GB"], "give how many the model has"),
        (["place", "cifar10:test:0", "--cluster", "2xv100", "--placer", FILES / "float8.pt"], "not a checkpoint"),
        *((["place", path, "--cluster", "2xv100"], f"{path.stem}.onnx: ") for path in sorted(FILES.glob("*.onnx"))),
    ],
    ids=lambda argument: None,
)
def test_files_are_refused_in_a_line(command: list[object], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in fails(capsys, *command)


@pytest.mark.parametrize(("name", "tool"), [("dev", "megatron"), ("gn", "torchtitan"), ("mod", "torchtitan")])
def test_names_in_files_do_not_run(name: str, tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph, cluster = (FILES / "injection" / f"{name}_{kind}" for kind in ("g.json.gz", "c.json"))
    kinds = ["--cluster", cluster, "--placement", "placement.json"]
    if run("place", graph, "--cluster", cluster, "--placer", "torch-pipeline", "-o", "placement.json") == 0:
        run("export", graph, *kinds, "--format", tool, "-o", "out")
    for path in Path("out").rglob("*") if Path("out").is_dir() else [Path("out")]:
        if path.is_file():
            subprocess.run([sys.executable if path.suffix == ".py" else "bash", path], capture_output=True, timeout=60)
    assert not list(tmp_path.glob("PWN*"))
