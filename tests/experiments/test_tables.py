from pathlib import Path

import pytest
from matplotlib.figure import Figure

from experiments.tables import by_columns, markdown, mean_and_spread, publish


def test_heuristicskeep_the_order_of_rows() -> None:
    rows = [{"a": 2, "b": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 3}]
    assert by_columns(rows, "a") == {(2,): [rows[0], rows[2]], (1,): [rows[1]]}
    assert list(by_columns(rows, "a", "b")) == [(2, 1), (1, 1), (2, 3)]


def test_spread_needs_two_values() -> None:
    assert mean_and_spread([2.0], ".1f") == "2.0"
    assert mean_and_spread([1.0, 2.0, 3.0], ".1f") == "2.0 ± 1.0"


def test_markdown() -> None:
    assert markdown([["a", "b"], ["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_what_is_published_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(tmp_path, "name", ["one", "two"], Figure())
    assert capsys.readouterr().out == "one\n\ntwo\n\n"
    assert (tmp_path / "name.md").read_text() == "one\n\ntwo\n"
    assert (tmp_path / "name.png").read_bytes().startswith(b"\x89PNG")
