from dataclasses import replace
from pathlib import Path

import pytest

from experiments.headline import HeadlineConfig, in_order, main, plan
from experiments.headline_placers import GDP, ON_IT, POLICY, ZERO_SHOT

SMALL = HeadlineConfig(
    models=("ptb",),
    clusters=("2xv100",),
    placers=("one device", "expert", GDP[1], POLICY),
    families=("ptb",),
    count=1,
    split="validation",
    placements=40,
    seeds=2,
    workers=1,
)


def test_seed_0_of_everything_on_the_first_cluster_comes_first() -> None:
    config = HeadlineConfig()
    cells = in_order(config)
    assert len(cells) == len(set(cells))
    assert set(plan(config)) <= set(cells)
    first = cells[: len(config.models) * len(config.placers)]
    assert {(cell.seed, cell.cluster) for cell in first} == {(0, "4xv100")}
    assert all(cell.seed == 0 for cell in cells if cell.placer in ("expert", ON_IT))


@pytest.mark.slow
def test_one_command_makes_tables_and_picture_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(SMALL, out=tmp_path, cells=tmp_path / "cells")
    main(replace(config, minutes=0.0))
    total = len(in_order(config))
    assert f"0 of {total} cells, {total} missing" in capsys.readouterr().out
    main(config)
    text = capsys.readouterr().out
    assert f"{total} of {total} cells, 0 missing" in text
    assert "Failed" not in text
    assert (tmp_path / "headline.md").read_text() == text[:-1]
    assert (tmp_path / "headline.png").stat().st_size > 10_000
    for placer in (*config.placers, *ZERO_SHOT):
        assert f"| {placer} |" in text
    made = {path: path.stat().st_mtime_ns for path in config.cells.iterdir()}
    assert len(made) == total
    main(config)
    assert capsys.readouterr().out == text
    assert {path: path.stat().st_mtime_ns for path in config.cells.iterdir()} == made
