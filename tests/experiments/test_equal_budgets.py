import numpy as np
import pytest

from experiments.equal_budgets import CHEAP, BudgetConfig, difference, overall, pass_gain


def small(out, **changes):
    budget = {"simulations": (60, 120), "seconds": (), "seeds": 2, "count": 2, "clusters": ("2xv100",), "processes": 1}
    return BudgetConfig(out, families=("ptb",), **budget | changes)


def test_differences_are_paired_by_graph_and_seed():
    def rows(values, placer="x"):
        return [{"graph": g, "seed": s, "placer": placer, "makespan_us": us} for g, s, us in values]

    ours = rows([("a", 0, 5.0), ("a", 1, 10.0), ("b", 0, 99.0), ("b", 1, 101.0)])
    theirs = rows([("b", 1, 100.0), ("b", 0, 100.0), ("a", 1, 10.0), ("a", 0, 10.0)])
    found = difference(ours, theirs)
    assert found.mean == pytest.approx(12.5)  # 25 % on a, 0 on b
    assert found.error == pytest.approx(12.5)
    assert np.isnan(difference(ours[:2], theirs).error)
    cheap = rows([("a", 0, 10.0), ("b", 0, 200.0)], CHEAP)
    passes = rows([("a", 0, 8.0), ("a", 1, 8.0), ("b", 0, 180.0), ("b", 1, 180.0)], "one pass")
    assert pass_gain([*passes, *cheap]).mean == pytest.approx(15.0)


def test_the_summary_says_which_cell_is_worst_and_how_many_are_behind(tmp_path):
    def row(family, graph, seed, placer, us):
        return {"family": family, "cluster": "c", "graph": graph, "seed": seed, "placer": placer, "makespan_us": us}

    rows = [row(family, "g", 0, CHEAP, 100.0) for family in "xy"]
    for family, seed, ours in (("x", 0, 90.0), ("x", 1, 80.0), ("y", 0, 102.0), ("y", 1, 104.0)):
        rows += [row(family, "g", seed, "one pass", ours), row(family, "g", seed, "guided@60", ours)]
        rows.append(row(family, "g", seed, "multilevel@60", 100.0))
    config = small(tmp_path, simulations=(60,), against=("multilevel",))
    lines = overall(rows, config)[1:]
    assert lines[0][0] == "one pass"
    for line in lines:
        assert line[2:] == ["+6.00", "-3.00 ± 1.00", "y, c", "1 of 2", "1 / 0 / 1", "+10.00"]
