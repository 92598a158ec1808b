"""`placeto report`; pages that `placeto place` writes are in `test_cli_graphs.py`."""

from pathlib import Path

import pytest

from tests.command_line import run

ON = ("--cluster", "2xv100")


@pytest.fixture
def placement(graph_file: str, tmp_path: Path) -> Path:
    path = tmp_path / "p.json"
    assert run("place", graph_file, *ON, "--placer", "etf", "-o", path) == 0
    return path


def test_a_page_of_a_placement(
    graph_file: str, placement: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert run("report", graph_file, *ON, "--placement", placement, "-o", page, "--against", "single,heft") == 0
    assert f"report       {page} (" in capsys.readouterr().out
    text = page.read_text()
    assert "etf (this report)" in text
    assert "<td>heft</td>" in text
    assert "<td>metis</td>" not in text
