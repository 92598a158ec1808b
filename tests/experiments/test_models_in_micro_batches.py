"""The table of models in micro-batches, over models, clusters and seeds."""

from experiments.models_in_micro_batches import COLUMNS, table


def test_means_over_seeds_and_geometric_means_over_models() -> None:
    """Only what differs from seed to seed gets a deviation; geometric means are taken seed by seed."""
    same = dict.fromkeys(COLUMNS, 200.0) | {"M": 4, "bound": 100.0}
    twice = dict.fromkeys(COLUMNS, 800.0) | {"M": 8, "bound": 100.0}
    lines = table(
        [("a", "x"), ("b", "x"), ("b", "y")],
        [[same, same], [twice, twice | {"placeto": 200.0}], [same, same]],
    )
    assert lines[1][:4] == ["a", "x", "4", "0.1"]
    assert lines[2][4:] == [*["8.000"] * (len(COLUMNS) - 1), "5.000 ± 4.243"]
    # of seed 0, the square root of 2 * 8; of seed 1, of 2 * 2
    assert lines[4] == ["geometric mean", "x", "", "", *["4.000"] * (len(COLUMNS) - 1), "3.000 ± 1.414"]
    assert [line[1] for line in lines[4:]] == ["x", "y", "all"]
