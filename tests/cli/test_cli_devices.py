"""The table of devices with its bars, on a terminal and elsewhere."""

import sys
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest

from placeto.cli.shared.device_bars import show_devices
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate
from tests.toys import toy_cluster, work


class Terminal(StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture
def schedule() -> Schedule:
    """The first device computes for 5 us of 20 and sends for 5 more, the other one computes for 10."""
    ops = [
        {"name": "a", "param_bytes": 3, "outputs": [5], **work(5.0)},
        {"name": "b", "inputs": [["a", 0]], **work(10.0)},
    ]
    problem = PlacementProblem(ComputationGraph.from_ops("chain", ops, "inference"), toy_cluster(2, memory=1000))
    return simulate(problem, np.array([0, 1]))


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """What stdout is from here on: 80 columns wide."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", stream := Terminal())
    return stream


def test_plain_text_elsewhere(schedule: Schedule, capsys: pytest.CaptureFixture[str]) -> None:
    show_devices(schedule)
    head, first, second = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "device ops busy # sending > waiting . peak memory"
    assert first.split()[:5] == ["gpu:0", "1", "25.0%", "25.0%", "50.0%"]
    assert first.endswith("8 B of 1.00 kB  ########>>>>>>>...............")
    assert second.endswith("###############...............")
    assert len(first) == len(second)


def test_in_colour_and_no_wider_than_the_terminal(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    show_devices(schedule, memory=False)
    head, first, _ = terminal.getvalue().splitlines()
    assert "ops" not in head
    assert "peak memory" not in head
    counts = [first.count(letter) for letter in "█▒·"]
    assert "\x1b[" in first
    assert sum(counts) == 80 - len("device  busy #  sending >  waiting .") - 2
    assert counts[0] == pytest.approx(counts[2] / 2, abs=1)
    assert counts[1] == pytest.approx(counts[0], abs=1)


def test_without_colour_the_letters_tell_them_apart(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    show_devices(schedule)
    assert "\x1b" not in terminal.getvalue()
    assert all(letter in terminal.getvalue().splitlines()[1] for letter in "#>.")


def test_names_hold_no_escapes(capsys: pytest.CaptureFixture[str], schedule: Schedule) -> None:
    cluster = schedule.problem.cluster
    first = replace(cluster.devices[0], name="gpu\x1b[31m[bold]")
    problem = PlacementProblem(schedule.problem.graph, replace(cluster, devices=(first, *cluster.devices[1:])))
    show_devices(simulate(problem, np.array([0, 1])))
    assert "gpu\\x1b[31m[bold]  " in capsys.readouterr().out


def test_names_with_line_ends_take_one_line(schedule: Schedule, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = schedule.problem.cluster
    devices = tuple(replace(device, name=f"{device.name}\ntouch ran") for device in cluster.devices)
    problem = replace(schedule.problem, cluster=replace(cluster, devices=devices))
    show_devices(simulate(problem, schedule.placement))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(devices)
    assert all(r"\ntouch ran" in line for line in lines[1:])
