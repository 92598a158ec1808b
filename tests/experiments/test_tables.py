from experiments.tables import markdown, mean_and_spread


def test_spread_needs_two_values() -> None:
    assert mean_and_spread([2.0], ".1f") == "2.0"
    assert mean_and_spread([1.0, 2.0, 3.0], ".1f") == "2.0 ± 1.0"


def test_markdown() -> None:
    assert markdown([["a", "b"], ["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"
