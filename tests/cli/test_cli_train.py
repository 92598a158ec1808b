"""`placeto train`, and what is done with its checkpoint."""

import json
from pathlib import Path

import pytest

from placeto.placers import LEARNED
from placeto.problem.graph import ComputationGraph, save_graph
from placeto.training.checkpoint import load_checkpoint, save_checkpoint
from tests.command_line import OPS, fails, run
from tests.toys import fork_of_chains


def test_train_place_simulate_agree_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(3):
        ops = [op | {"time_us": {"*": op["time_us"]["*"] * (i + 1)}} for op in OPS]
        save_graph(ComputationGraph.from_ops(f"fork{i}", ops), tmp_path / f"fork{i}.json")
    train, validation, test = (tmp_path / f"fork{i}.json" for i in range(3))
    on, checkpoint, placement = ("--cluster", "2xv100"), tmp_path / "run", tmp_path / "p.json"
    small = ("--iterations", "2", "--learning.graphs", "1", "--learning.supervised_moves", "3")
    graphs = (train, "--validation-graphs", validation)
    assert run("train", *on, *graphs, "--out", checkpoint, "--threads", "1", *small) == 0
    captured = capsys.readouterr()
    assert f"tensorboard --logdir {checkpoint}" in captured.out
    assert captured.err.startswith(f"training: 0 % preparing graph 1 of 1: {train}\n")
    assert "training: 100 %" in captured.err
    again = fails(capsys, "train", *on, *graphs, "--out", checkpoint)
    assert "holds a checkpoint already; add --resume" in again
    (tmp_path / "killed").mkdir()  # before its first checkpoint
    killed = fails(capsys, "train", *on, *graphs, "--out", tmp_path / "killed", "--resume")
    assert "nothing was saved in" in killed
    assert "it has no checkpoint.pt; leave out --resume" in killed
    assert run("place", test, *on, "--checkpoint", checkpoint, "-o", placement) == 0
    assert "placer       placeto" in capsys.readouterr().out
    assert run("simulate", test, *on, "--placement", placement) == 0
    captured = capsys.readouterr()
    assert f"({json.loads(placement.read_text())['makespan_us']:.3f} us)\n" in captured.out
    assert captured.err == ""
    assert "holds the placer 'placeto', not 'etf'" in fails(
        capsys, "place", test, *on, "--checkpoint", checkpoint, "--placer", "etf"
    )
    options = ("--checkpoint", checkpoint, "--placers", "placeto@pass,mine=placeto", "--simulations", "30")
    assert run("evaluate", test, *on, *options, "--processes", "1") == 0
    assert "| mine " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("placer", list(LEARNED))
def test_train_for_one_graph_then_fine_tune(placer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (tmp_path / f"fork{i}.json" for i in range(2))
    for i, path in enumerate((one, other)):
        save_graph(fork_of_chains(3 + i, 2).graph, path)
    on = ("--cluster", "2xv100")
    settings = {"placeto": ("replicas", "moves"), "placeto-paper": ("episodes",)}.get(placer, ("samples",))
    small = ["--iterations", "1", *(word for name in settings for word in (f"--learning.{name}", "2"))]
    assert run("train", one, *on, "--placer", placer, "--out", tmp_path / "a", *small) == 0
    captured = capsys.readouterr()
    assert "the training graphs choose the parameters" in captured.err
    assert f"best met     {one}: " in captured.out
    assert run("simulate", one, *on, "--placement", tmp_path / "a" / "placement-0.json") == 0
    # the policy's settings come with the checkpoint
    tuned = [option for option in small if option not in ("--policy.hidden", "16")]
    start = ("--checkpoint", tmp_path / "a")
    assert run("train", other, *on, *start, "--out", tmp_path / "b", *tuned) == 0
    assert load_checkpoint(tmp_path / "b")["placer"] == placer
    assert run("place", other, *on, "--checkpoint", tmp_path / "b") == 0
    assert f"placer       {placer}: " in capsys.readouterr().out
    wrong = "gdp" if placer == "placeto" else "placeto"
    says = fails(capsys, "train", other, *on, *start, "--placer", wrong, "--out", tmp_path / "c")
    assert f"holds the placer {placer!r}, not {wrong!r}" in says


def test_help_of_train_shows_the_policy_of_the_placer(capsys: pytest.CaptureFixture[str]) -> None:
    for placer, option in (
        ("placeto", "--env.tolerance"),
        ("placeto-paper", "--policy.devices"),
        ("grouper", "--policy.groups"),
        ("gdp", "--policy.segment"),
    ):
        assert run("train", f"--placer={placer}", "--help") == 0
        assert option in capsys.readouterr().out


def test_the_recipe_of_a_paper_gives_the_settings_that_are_not_given(graph_file: str, tmp_path: Path) -> None:
    options = (graph_file, "--cluster", "2xv100", "--recipe", "paper")
    small = ("--iterations", "1", "--policy.hidden", "16", "--learning.samples", "3")
    assert run("train", *options, "--placer", "seq2seq", "--out", tmp_path / "run", *small) == 0
    made = load_checkpoint(tmp_path / "run")["config"]
    kept = {"samples": 3, "algorithm": "reinforce", "baseline": "moving", "failed": -10.0, "falling": False}
    assert kept.items() <= made["learning"].items()
    assert made["policy"] == {"units": "paper", "hidden": 16, "feedback": False, "normalised": False, "max_devices": 8}


def test_an_option_that_is_given_twice_has_its_last_value(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the others take their settings from it."""
    train = "train", graph_file, "--cluster", "2xv100", "--iterations", "1", "--learning.samples", "2"
    placers = "--placer", "gdp", "--placer=mlp"
    assert run(*train, *placers, "--out", tmp_path / "a", "--recipe", "paper", "--recipe", "ours") == 0
    assert load_checkpoint(tmp_path / "a")["config"]["learning"]["algorithm"] == "ppo"
    assert run(*train, *placers, "--out", tmp_path / "b", "--recipe", "ours", "--recipe", "paper") == 0
    saved = load_checkpoint(tmp_path / "b")
    assert (saved["placer"], saved["config"]["learning"]["algorithm"]) == ("mlp", "reinforce")


def test_options_without_effect_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_graph(fork_of_chains(3, 2).graph, tmp_path / "g.json")
    given = ("train", tmp_path / "g.json", "--cluster", "2xv100", "--iterations", "1")
    assert run(*given, "--out", tmp_path / "b", "--placer", "mlp", "--learning.quantile", "0.5") == 0
    assert "note: learning.quantile: has no effect, because learning.baseline is samples" in capsys.readouterr().err


def test_a_resumed_run_says_if_its_learning_rate_jumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_graph(fork_of_chains(3, 2).graph, tmp_path / "g.json")
    given = "train", tmp_path / "g.json", "--cluster", "2xv100", "--out", tmp_path / "out", "--placer", "mlp"
    jumps = "--resume: the run was planned with --iterations 1, and now has {}. The learning rate follows the share"
    for limit, now in (((), ""), (("--iterations", 2), "--iterations 2"), (("--minutes", 0.01), "--minutes 0.01")):
        if not now:
            assert run(*given, "--iterations", 1) == 0
        capsys.readouterr()
        save_limits(tmp_path / "out", iterations=1)
        assert run(*given, "--resume", *limit) == 0
        said = capsys.readouterr().err
        assert jumps.format(now) in said if now else "planned" not in said
    save_limits(tmp_path / "out", iterations=[1])
    assert "checkpoint.pt: iterations must be an integer" in fails(capsys, *given, "--resume")


def save_limits(out: Path, **limits: object) -> None:
    """Change the limits in the checkpoint of a run."""
    saved = load_checkpoint(out)
    save_checkpoint(saved | {"config": saved["config"] | limits}, out)


def test_the_end_of_a_training_shows_the_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        save_graph(fork_of_chains(3 + number, 2).graph, tmp_path / f"{number}.json")
    graphs = (tmp_path / "0.json", "--validation-graphs", tmp_path / "1.json", "--out", tmp_path / "out")
    still = ("--placer", "mlp", "--learning.lr", "0")  # learns nothing
    assert run("train", *graphs, "--cluster", "2xv100", "--iterations", "1", *still) == 0
    captured = capsys.readouterr()
    (line,) = [line for line in captured.out.splitlines() if line.startswith("validation ")]
    kept, untrained = (line.split()[number].rstrip(";") for number in (1, 9))
    assert line.startswith(
        f"validation   {kept} of the best single device; before training {untrained}; random decisions "
    )
    assert all(f"; {name} 0." in line for name in ("METIS", "best cheap heuristic", "multilevel"))
    assert kept == untrained
    assert "note: in validation the policy is no better than before training" in captured.err
    assert run("train", *graphs, "--cluster", "2xv100", "--iterations", "1", *still, "--resume") == 0
    captured = capsys.readouterr()
    assert "note: nothing was trained: the run had reached its limit before; to go on, give a higher" in captured.err
    assert "validation " not in captured.out
