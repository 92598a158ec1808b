from pathlib import Path

import pytest

from experiments.schedules import Schedules, main
from placeto.problem.graph import save_graph
from tests.toys import fork_of_chains


def test_three_schedules_from_worst_to_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_graph(fork_of_chains(4, 6).graph, tmp_path / "fork.json")
    main(Schedules(str(tmp_path / "fork.json"), "4xv100", tmp_path / "schedules.png"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["one", "best", "Placeto,"]
    times = [float(line.split(": ")[1].split(" ")[0]) for line in lines]
    assert times[0] > times[1] >= times[2] > 0.0
    assert (tmp_path / "schedules.png").stat().st_size > 10_000
