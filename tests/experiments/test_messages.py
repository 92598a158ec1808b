import pytest

from experiments.fits import FitConfig
from experiments.messages import MessagesConfig, main

SMALL = FitConfig(train=("ptb:2",), held_out=("ptb",), each=2, labels=4, batch=2)


def small(out, **changes):
    settings = {"families": ("ptb",), "count": 1, "clusters": ("2xv100",), "simulations": (100,), "processes": 1}
    settings |= {"seeds": 1, "steps": 2, "labels": ("single", "follow"), "fits": SMALL}
    return MessagesConfig(out, **settings | changes)


@pytest.mark.slow
def test_one_command_fits_places_and_makes_tables_and_picture(tmp_path, capsys):
    main(small(tmp_path, views=("groups",)))
    printed = capsys.readouterr().out
    assert (tmp_path / "messages.md").read_text().strip() in printed
    assert (tmp_path / "messages.png").stat().st_size > 1000
    assert len([line for line in printed.splitlines() if line.startswith("| groups |")]) == 2
    assert len([line for line in printed.splitlines() if line.startswith(("| single |", "| follow |"))]) == 4
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "fits").glob("*.safetensors")}
    assert len(made) == 4
    main(small(tmp_path, views=("groups",)))
    assert made == {path: path.stat().st_mtime_ns for path in made}, "fitted again though it was there"
