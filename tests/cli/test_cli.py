"""What all commands share: help, graphs, clusters and checkpoints as arguments, errors and interruption."""

import itertools
import os
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from placeto.cli import command as cli
from placeto.cli import list as list_command
from placeto.plumbing.signals import Interruption
from placeto.problem.graph.uncounted import UncountedWarning
from tests.command_line import fails, run


def test_help_is_quick_and_lists_the_commands() -> None:
    code = "import sys, placeto, placeto.cli.command; print('torch' in sys.modules, 'numba' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "False False\n"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, "-m", "placeto", "--help"], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 5.0  # CPU seconds; 0.1 on an idle machine
    assert all(f"\n  {command}" in result.stdout for command in cli.COMMANDS)


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_help_of_each_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: placeto {command}")
    assert captured.err == ""


@pytest.mark.parametrize("command", [name for name in cli.COMMANDS if name != "train"])  # whose help is in columns
def test_no_help_of_an_option_is_broken_where_the_source_is(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert run(command, "--help") == 0
    _, options = re.split(r"^\W* options .*\n", capsys.readouterr().out, maxsplit=1, flags=re.MULTILINE)
    lines = [line.strip("│ ") for line in options.splitlines()]
    named = [number for number, line in enumerate(lines) if re.match("--?[a-z]", line)]
    for number in named:
        following = itertools.takewhile(lambda line: line and line[0] not in "-╰", lines[number + 1 :])
        assert len(list(following)) == (0 if "  " in lines[number] else 1), lines[number]


def test_each_format_of_exports_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "--help") == 0
    items = re.findall(r"^- ([\w., -]+):", capsys.readouterr().out, flags=re.MULTILINE)
    assert items[:2] == ["device-map", "torch-pipeline"]
    assert items[-2:] == ["dot", "graphml"]


def test_a_choice_is_listed_wherever_the_line_is_broken() -> None:
    """tyro lists choices in another order in each process: the point alone may stand in the next line."""
    frame = "╭─ Parsing error ─╮\n│ invalid choice 'c'. Expected one of ('b', {} │\n│ . │\n│ ──── │\n│ more │\n"
    assert cli._one_line(frame.format("'a')")) == "invalid choice 'c'. Expected one of a, b."


def test_lists_have_a_name_and_a_sentence_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    for what, expected in (("clusters", "4xv100"), ("placers", "placeto"), ("placers", "etf")):
        assert run("list", what) == 0
        lines = capsys.readouterr().out.splitlines()
        assert expected in [line.split()[0] for line in lines]
        assert all(len(line.split(maxsplit=1)[1]) > 10 for line in lines)


def test_graphs_of_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "families") == 0
    assert capsys.readouterr().out.startswith("cifar10 ")
    assert run("place", "ptb:test:0", "--cluster", "2xv100", "--placer", "single") == 0
    assert "1.0000 of the best single device" in capsys.readouterr().out


def test_graphs_of_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4.0, parameter_size=8.0"
    lines = [f"node{i} -- Linear(i) -- {times}" for i in (1, 2)] + ["\tnode1 -- node2"]
    (tmp_path / "profile.graph.txt").write_text("\n".join(lines) + "\n")
    assert run("place", tmp_path / "profile.graph.txt", "--cluster", "2xv100", "--placer", "single") == 0
    assert "1.0000 of the best single device" in capsys.readouterr().out
    (tmp_path / "bad.graph.txt").write_text("nonsense")
    assert "bad.graph.txt" in fails(capsys, "place", tmp_path / "bad.graph.txt", "--cluster", "2xv100")


def test_errors_of_our_own_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(arguments: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(list_command, "run", bug)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["list", "clusters"])


@pytest.mark.parametrize(
    ("interruption", "says"),
    [
        (KeyboardInterrupt(), "interrupted\n"),
        (Interruption(signal.SIGINT, "a checkpoint is saved"), "interrupted: a checkpoint is saved\n"),
    ],
)
def test_interruption_exits_with_130_and_tells_what_is_kept(
    interruption: BaseException, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(arguments: object) -> None:
        raise interruption

    monkeypatch.setattr(list_command, "run", interrupt)
    assert run("list", "clusters") == 130
    assert capsys.readouterr().err == says


def test_sigterm_is_told_in_one_line_and_exits_with_143(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is half done is tidied up, as after Ctrl-C."""
    tidied = []

    def asked_to_end(arguments: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10.0)
        finally:
            tidied.append(signal.getsignal(signal.SIGTERM))

    monkeypatch.setattr(list_command, "run", asked_to_end)
    assert run("list", "clusters") == 143
    assert capsys.readouterr().err == "ended by SIGTERM\n"
    assert tidied == [signal.SIG_DFL], "a second one ends it at once"


def test_who_ignores_sigterm_goes_on_to_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_command, "run", lambda arguments: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert run("list", "clusters") == 0
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_reader_that_goes_away_is_no_error(graph_file: str) -> None:
    command = f"{sys.executable} -m placeto list clusters | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert result.stderr == ""


def test_a_reader_that_goes_away_is_no_error_of_other_programs_either() -> None:
    """Those of experiments, which print to a pipe as late as when they end."""
    code = "from placeto.cli.command import user_errors\nwith user_errors(): print('a line')"
    here, there = os.pipe()
    os.close(here)
    try:
        environment = os.environ | {"PYTHONUNBUFFERED": ""}
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=there, stderr=subprocess.PIPE, text=True, env=environment
        )
    finally:
        os.close(there)
    assert (done.returncode, done.stderr) == (0, "")


def test_our_warnings_are_notes_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """And what torch-geometric scripts on import is not told."""
    with cli.warnings_noted():
        warnings.warn("`torch.jit.script` is deprecated.", FutureWarning, stacklevel=1)
        assert capsys.readouterr().err == ""
        warnings.simplefilter("always")
        warnings.warn("twice (1 op): only its bytes count", UncountedWarning, stacklevel=1)
    assert capsys.readouterr().err == "note: twice (1 op): only its bytes count\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_a_shell_has_closed_is_no_error(tmp_path: Path, closed: str) -> None:
    file = tmp_path / "devices.json"
    command = f"exec {sys.executable} -m placeto cluster 4xv100 -o {file} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert file.exists()


def test_an_interruption_of_the_first_imports_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [sys.executable, "-m", "placeto", "list", "placers"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
