import math

import numpy as np
import pytest

from placeto.evaluation.summary import markdown_table, mean_curves, ratio, summarize


def row(graph: str, placer: str, makespan: float, seed: int = 0, fits: bool = True) -> dict[str, object]:
    ratios = {"makespan_us": makespan, "relative": makespan / 10.0, "lower_bound_us": 2.0, "fits": fits}
    return {"graph": graph, "cluster": "c", "placer": placer, "seed": seed, **ratios, "simulations": 4, "seconds": 0.5}


def test_summary_by_hand() -> None:
    rows = [row("g", "p", 4.0, 0), row("g", "p", 6.0, 1), row("h", "p", 8.0, 0), row("h", "p", 8.0, 1)]
    rows += [row("g", "q", 5.0, 0), row("g", "q", 5.0, 1), row("h", "q", 9.0, 0), row("h", "q", 10.0, 1)]
    p, q = summarize(rows)
    assert (p.placer, q.placer) == ("p", "q")
    assert p.relative == pytest.approx(0.65)
    assert p.spread == pytest.approx(np.std([0.6, 0.7], ddof=1))
    assert p.to_best == pytest.approx((1 + 1.5 + 1 + 1) / 4)
    assert p.to_bound == pytest.approx(6.5 / 2)
    assert (p.wins, q.wins) == (2, 1)  # both have mean 5 on g
    assert (q.worst, q.fits, q.rows, q.graphs, q.simulations, q.seconds) == (1.0, 4, 4, 2, 4.0, 0.5)


def test_no_ratio_to_a_device_that_does_not_hold_the_graph() -> None:
    far = {"single_fits": False, "history": [[1, 0.1, 90.0]]}
    p, q = summarize([row("g", "p", 5.0), row("h", "p", 90.0) | far, row("h", "q", 80.0) | far])
    assert (p.relative, p.worst, p.to_best) == (0.5, 0.5, pytest.approx((1 + 9 / 8) / 2))
    assert math.isnan(q.relative)
    lines = [line.split("|") for line in markdown_table([p, q]).split("\n")]
    assert [[cell.strip() for cell in line[1:7]] for line in lines[2:]] == [
        ["p", "0.500", "1.062", "23.750", "1/2", "0.500"],
        ["q", "-", "1.000", "40.000", "1/1", "-"],
    ]
    assert mean_curves([row("h", "p", 90.0) | far], "simulations") == {}


def test_what_does_not_fit_is_neither_best_nor_wins() -> None:
    fast, slow = summarize([row("g", "fast", 1.0, fits=False), row("g", "slow", 5.0)])
    assert (fast.wins, slow.wins, slow.to_best, fast.fits) == (0, 1, 1.0, 0)
    only = summarize([row("g", "a", 1.0, fits=False), row("g", "b", 2.0, fits=False)])
    assert [s.wins for s in only] == [1, 0]


def test_where_nothing_takes_time_ratios_are_1_or_infinite() -> None:
    assert [ratio(3.0, 2.0), ratio(0.0, 0.0), ratio(3.0, 0.0)] == [1.5, 1.0, math.inf]
    idle = {"relative": 1.0, "lower_bound_us": 0.0, "history": [[1, 0.1, 5.0], [2, 0.2, 0.0]]}
    rows = [row("g", "p", 0.0) | idle, row("g", "q", 5.0) | idle | {"relative": math.inf}]
    p, q = summarize(rows)
    assert (p.relative, p.to_best, p.to_bound, p.wins) == (1.0, 1.0, 1.0, 1)
    assert (q.relative, q.to_best, q.to_bound, q.wins) == (math.inf, math.inf, math.inf, 0)
    assert [makespan for _, makespan in mean_curves(rows, "simulations")["p"]][:2] == [math.inf, 1.0]


def test_mean_curves_average_over_rows_of_different_length() -> None:
    one = row("g", "p", 4.0) | {"history": [[1, 0.1, 10.0], [3, 0.3, 4.0]]}
    two = row("h", "p", 8.0) | {"history": [[1, 0.2, 8.0]]}
    by_count = mean_curves([one, two], "simulations")["p"]
    early, late = pytest.approx((1.0 + 0.8) / 2), pytest.approx((0.4 + 0.8) / 2)
    assert by_count == [(1.0, early), (2.0, early), (3.0, late), (4.0, late)]  # both rows took 4 simulations
    by_time = mean_curves([one, two], "seconds")["p"]
    assert by_time[0] == (0.2, early)  # when the second row has its first placement
    assert by_time[-1] == (0.5, late)
    changes = [t for (t, a), (_, b) in zip(by_time[1:], by_time, strict=False) if a != b]
    assert changes == [pytest.approx(0.3, rel=0.01)]


def test_mean_curves_of_one_simulation() -> None:
    only = row("g", "p", 4.0) | {"history": [[4, 0.5, 4.0]]}
    assert mean_curves([only], "simulations") == {"p": [(4.0, 0.4)]}
    assert mean_curves([only], "seconds") == {"p": [(0.5, 0.4)]}
    assert mean_curves([row("g", "p", 4.0) | {"history": []}], "seconds") == {}
