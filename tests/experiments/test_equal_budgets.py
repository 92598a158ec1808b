import numpy as np
import pytest

from experiments.equal_budgets import CHEAP, difference, pass_gain


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
