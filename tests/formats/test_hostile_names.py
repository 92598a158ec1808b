"""Names from files stay names: none runs as code in what exports write, or disturbs the text around it."""

import json
import runpy
import subprocess
import unicodedata
from contextlib import chdir
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.formats.exports import modules_dot, save_torch_pipeline, torch_pipeline
from placeto.formats.exports.layer_tools import LAYER_TOOLS
from placeto.formats.exports.torchtitan import save_torchtitan, torchtitan
from placeto.formats.exports.whole_layers import whole_layers
from placeto.formats.report import report_page
from placeto.heuristics.pipelines.plans import make_plan
from placeto.plumbing.terminal import printable
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate
from tests.formats.torch_toys import captured, chain, planned

HOSTILE = (
    "a\ntouch ran",
    "$(touch ran)`touch ran`",
    "'; touch ran; '",
    'x"""; open("ran", "w"); """',
    "x']]; open('ran', 'w'); [['",
    "a\\",
    "\x1b[2K\x00\u202ename",
    "</script><script>ran</script>",
)


@cache
def plain() -> Schedule:
    """A plan with names that do no harm."""
    return planned(captured(chain(8)), [(0,), (1,)])


def named(name: str) -> Schedule:
    """A plan whose graph, devices and modules have a name in theirs."""
    graph, cluster, plan = plain().problem.graph, plain().problem.cluster, plain().plan
    modules = tuple(f"{name.replace('.', ' ')}.{path}" if path.isdigit() else path for path in graph.modules)
    devices = tuple(replace(device, name=f"{name}{device.name}") for device in cluster.devices)
    problem = PlacementProblem(replace(graph, name=name, modules=modules), replace(cluster, devices=devices))
    return simulate(problem, make_plan(problem, plan.devices, plan.borders))


def names_of(schedule: Schedule) -> list[str]:
    return list(schedule.problem.cluster.device_names[:2])


@pytest.mark.parametrize(
    ("name", "tool"), [*((name, "megatron") for name in HOSTILE), (HOSTILE[0], "vllm"), (HOSTILE[1], "llama.cpp")]
)
def test_a_shell_reads_names_as_names(name: str, tool: str, tmp_path: Path) -> None:
    schedule = named(name)
    (tmp_path / "placed.sh").write_text(LAYER_TOOLS[tool](whole_layers(schedule, tool)))
    said = subprocess.run(
        ["bash", "-euc", '. ./placed.sh; printf "%s\\0" "${DEVICES[@]}"'], cwd=tmp_path, capture_output=True, text=True
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.split("\0")[:-1] == list(map(printable, names_of(schedule)))
    assert [path.name for path in tmp_path.iterdir()] == ["placed.sh"]


@given(st.text(min_size=1, max_size=30) | st.sampled_from(HOSTILE))
@settings(max_examples=15, deadline=None)
def test_python_reads_names_as_names(name: str) -> None:
    with TemporaryDirectory() as folder, chdir(folder):
        schedule = named(name)
        made = torchtitan(schedule)
        save_torchtitan(made, Path("titan"))
        program = runpy.run_path("titan/parallelism.py")
        assert (program["GRAPH"], program["DEVICES"]) == (name, names_of(schedule))
        assert program["PARALLELISM"]["module_fqns_per_model_part"] == [list(part) for part in made.modules]
        save_torch_pipeline(torch_pipeline(schedule), Path("pipeline"))
        plan = json.loads(Path("pipeline/plan.json").read_text())
        assert (plan["graph"], plan["devices"]) == (name, names_of(schedule))
        assert not Path("ran").exists()


@pytest.mark.parametrize("name", [HOSTILE[0], *HOSTILE[-2:]])
def test_pages_and_pictures_spell_names_out(name: str) -> None:
    schedule = named(name)
    page = report_page(schedule, name)
    assert page.count("<script") == report_page(plain(), "model").count("<script")
    for text in (page, modules_dot(schedule)):
        assert not {unicodedata.category(c) for c in text.replace("\n", "")} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
