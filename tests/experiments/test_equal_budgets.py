import numpy as np
import pytest

from experiments.equal_budgets import CHEAP, BudgetConfig, difference, main, overall, pass_gain, specs
from placeto.evaluation.comparison import load_rows
from placeto.placers import LoadError


def small(out, **changes):
    budget = {"simulations": (60, 120), "seconds": (), "seeds": 2, "count": 2, "clusters": ("2xv100",), "processes": 1}
    return BudgetConfig(out, families=("ptb",), **budget | changes)


@pytest.mark.slow
def test_one_command_makes_rows_table_and_picture(tmp_path, capsys):
    main(small(tmp_path))
    out = capsys.readouterr().out
    assert "| ptb, 2xv100 | 120 | 0." in out
    assert "| ptb, 2xv100 | one pass / best cheap heuristic | 0." in out
    assert out.strip() == (tmp_path / "equal_budgets.md").read_text().strip()
    assert (tmp_path / "equal_budgets.png").stat().st_size > 1000
    rows = load_rows(tmp_path / "rows.json")
    assert len(rows) == 2 * 2 * (1 + 3 * 2) + 2
    for row in rows:
        if "@" in row["placer"]:
            assert row["simulations"] <= int(row["placer"].split("@")[1])
    best = {row["graph"]: row["makespan_us"] for row in rows if row["placer"] == CHEAP}
    assert all(row["makespan_us"] <= best[row["graph"]] for row in rows if row["placer"].startswith(("guided", "one")))
    written = (tmp_path / "ptb.json").read_bytes()
    main(small(tmp_path))
    assert (tmp_path / "ptb.json").read_bytes() == written, "made again though it was there"


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


def test_every_budget_has_all_placers(tmp_path):
    labels = [spec.label for spec in specs(small(tmp_path, seconds=(0.5,)), 0)]
    budgets = ("60", "120", "0.5s")
    assert labels == ["one pass", *(f"{name}@{of}" for name in ("guided", "anneal", "multilevel") for of in budgets)]


def test_each_seed_has_the_next_checkpoint(tmp_path):
    config = small(tmp_path, checkpoints=("a", "b"), against=("anneal",))
    used = [{spec.placer for spec in specs(config, seed)} for seed in range(3)]
    assert used == [{"a", "anneal"}, {"b", "anneal"}, {"a", "anneal"}]


def test_an_unknown_checkpoint_is_refused(tmp_path):
    with pytest.raises(LoadError, match="no placer and no checkpoint"):
        main(small(tmp_path, checkpoints=("placeto", "nothing")))
    with pytest.raises(SystemExit, match="give a checkpoint"):
        main(small(tmp_path, checkpoints=()))
    with pytest.raises(SystemExit, match="give a placer to compare with"):
        main(small(tmp_path, against=()))


def test_budgets_of_seconds_alone_make_a_picture_too(tmp_path, capsys):
    main(small(tmp_path, simulations=(), seconds=(0.05, 0.1), seeds=1, count=1))
    assert "| ptb, 2xv100 | 0.05s | " in capsys.readouterr().out
    assert (tmp_path / "equal_budgets.png").stat().st_size > 1000
    with pytest.raises(SystemExit, match="give a budget"):
        main(small(tmp_path, simulations=()))
