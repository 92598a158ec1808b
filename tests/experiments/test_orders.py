"""The experiments on orders and links run, on a graph that is small."""

import pytest

from experiments.links import Links
from experiments.links import main as links
from experiments.orders import Orders
from experiments.orders import main as orders


def test_orders_prints_a_line_for_each_placer(capsys: pytest.CaptureFixture[str]) -> None:
    orders(Orders(("ptb:validation:7",), placers=("heft", "hillclimb"), simulations=20, seeds=2))
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [line[0] for line in lines[2:]] == ["| heft", "| hillclimb"]
    assert all(float(line[1].split(" ")[0]) < 5.0 for line in lines[2:])


def test_links_prints_what_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    links(Links(("ptb:validation:7",), placers=("etf",), simulations=20, seeds=1))
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.startswith("| ptb:validation:7 | 2x4xv100 | etf | ")]
    assert row.split(" | ")[-1] in ("1 |", "2 |")  # hosts used
    assert "etf: " in printed
