"""Each experiment runs from its command line on the smallest input; what it prints is kept, below the command."""

import runpy
import shlex
import sys
from pathlib import Path

import pytest

from placeto.problem.graph import save_graph
from tests.toys import fork_of_chains

SMALL = "--families small --processes 1 --out runs/x"
SLOW = {
    "architectures",
    "equal_budgets",
    "fidelity",
    "headline",
    "models_in_micro_batches",
    "recipes",
    "short_memory",
}
NEED_DATA = (
    "collectives", "fit_efficiency", "outside_amp", "outside_bubbles", "outside_optima", "outside_pipedream",
    "outside_recipe", "outside_sailor", "outside_torchgpipe", "outside_vtrain", "peers",
)  # fmt: skip
COMMANDS = {
    "architectures": ("--only gpt2", "AutoModelForCausalLM"),
    "constructive": (
        "--families small --clusters 2xv100 --graphs 2 --iterations 2 --seeds 1 --count 2 --rounds 1 --out runs/x",
        "| small, 2xv100, 1 rounds, imitation 0.5 |",
    ),
    "equal_budgets": (f"{SMALL} --simulations 60 --seconds 0.05 --seeds 2 --count 2 --clusters 2xv100", "| 60 | 0."),
    "fidelity": ("--out runs/x --placements 10 --seconds 0.1 --profile-seconds 0.1 --models MLP", "| MLP | 10 |"),
    "headline": (
        "--out runs/x --cells runs/cells --models ptb --clusters 2xv100 --placers expert 'one device' --families small "
        "--count 1 --split validation --placements 40 --seeds 1 --workers 1",
        "| expert | 2 | ",
    ),
    "memory_limits": (
        "--graphs small:validation:0 --clusters 2xv100 --shares 0.8 --simulations 20 --seeds 1 --out runs/x",
        "| 0.8, 20, placeto | ",
    ),
    "models_in_micro_batches": (
        "--out runs/x --models U-net --clusters 4xv100 --simulations 20 --workers 1",
        "| U-net |",
    ),
    "plan_ranks": ("--out runs/x --models U-net --clusters 4xv100 --micro-batches 4", "| U-net | 4xv100 | 4 | 0.00 |"),
    "recipes": (
        "--out runs/x --graphs small:2 --validation small:1 --presets 2xv100 --random-clusters 1 "
        "--training.iterations 2 --training.validate-every 1 --training.learning.graphs 2 "
        "--training.learning.supervised-moves 3 --training.learning.labels 4 --training.learning.replay 20",
        "pretrained.safetensors: 0.",
    ),
    "short_memory": ("--out runs/x --models U-net --counts 4 --between 0.5 --also", "| U-net | 4xv100 | 0.2 |"),
    "schedules": ("--graph fork.json --picture picture.png", "Placeto, "),
}
LAYER = "forward_compute_time=10.0, backward_compute_time=20.0, activation_size=4e3, parameter_size=8"


@pytest.fixture(autouse=True)
def _inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_family: None) -> None:
    """The current folder has a graph, and one of another program."""
    monkeypatch.chdir(tmp_path)
    save_graph(fork_of_chains(4, 6).graph, "fork.json")
    nodes, arcs = [f"node{k} -- Linear -- {LAYER}" for k in range(6)], [f"\tnode0 -- node{k}" for k in range(1, 6)]
    Path("graphs").mkdir()
    Path("graphs/fork.graph.txt").write_text("\n".join([*nodes, *arcs]) + "\n")


def run(monkeypatch: pytest.MonkeyPatch, name: str, options: str) -> None:
    """``python -m experiments.NAME``, in this process."""
    monkeypatch.delitem(sys.modules, f"experiments.{name}", raising=False)  # else runpy warns
    monkeypatch.setattr(sys, "argv", [name, *shlex.split(options), "--results", "results.md"])
    runpy.run_module(f"experiments.{name}", run_name="__main__", alter_sys=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in COMMANDS])
def test_an_experiment_runs_and_keeps_what_it_prints(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options, says = COMMANDS[name]
    run(monkeypatch, name, options)
    printed = capsys.readouterr().out
    assert says in printed
    kept = Path("results.md").read_text()
    assert f"    python -m experiments.{name} " in kept
    assert kept.rstrip().endswith(printed.rstrip())


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("schedules", "--graph nosuch:test:0", "unknown graph family 'nosuch'"),
        ("cost_models", "--steps none.csv", "none.csv: No such file"),
        *((name, "--data none", "none") for name in NEED_DATA),
    ],
)
def test_a_users_mistake_is_one_line_and_keeps_the_results_of_before(
    name: str, options: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So is data of others that isn't there."""
    Path("results.md").write_text("of before")
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, name, options)
    assert stop.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {says}")
    assert Path("results.md").read_text() == "of before"


def test_settings_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as stop:
        run(monkeypatch, "equal_budgets", "--simulations --seconds --out runs/x")
    assert stop.value.code not in (0, None)
    assert not Path("runs").exists()
