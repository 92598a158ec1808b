import numpy as np
import pytest

from experiments.anytime import AnytimeConfig, best_at, main, table


def test_one_command_makes_table_and_picture_and_keeps_what_is_finished(tmp_path, capsys):
    config = AnytimeConfig(
        tmp_path, ("ptb:test:0",), "2xv100", against=("anneal",), seconds=0.3, times=(0.001, 0.3), seeds=1
    )
    main(config)
    printed = capsys.readouterr().out
    assert (tmp_path / "anytime.md").read_text().strip() in printed
    assert (tmp_path / "anytime.png").stat().st_size > 1000
    rows = (tmp_path / "rows.json").read_bytes()
    main(config)
    assert (tmp_path / "rows.json").read_bytes() == rows


def test_the_table_reads_the_best_so_far():
    def row(seed, history):
        us = history[-1][2]
        common = {"graph": "g", "placer": "a", "seed": seed, "simulations": 10 + seed, "makespan_us": us}
        return common | {"relative": us / 100.0, "history": history}

    rows = [row(0, [[1, 0.1, 90.0], [2, 0.9, 50.0]]), row(1, [[1, 0.5, 70.0]])]
    assert [best_at(rows[0], time) for time in (0.1, 0.5, 1.0)] == [0.9, 0.9, 0.5]
    assert np.isnan(best_at(rows[1], 0.4))
    assert table(rows, (0.2, 0.5, 1.0))[2] == ["g", "a", "-", "0.8000", "0.6000", "10"]


@pytest.mark.parametrize("changes", [{"graphs": ()}, {"seeds": 0}, {"seconds": 0.0}])
def test_what_makes_no_sense_is_refused(tmp_path, changes):
    with pytest.raises(SystemExit, match="give at least one graph, one seed, and seconds above 0"):
        main(AnytimeConfig(tmp_path, **changes))
