import numpy as np
import pytest

from experiments.fits import FitConfig
from experiments.messages import MessagesConfig, gains, judged_table, main, placed_table

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


def test_gains_are_of_the_same_graph_cluster_and_seed():
    def row(graph, seed, placer, us):
        return {"graph": graph, "cluster": "c", "seed": seed, "placer": placer, "makespan_us": us}

    rows = [row(g, s, "a", us) for g, s, us in (("x", 0, 90), ("x", 1, 80), ("y", 0, 50), ("y", 1, 100))]
    rows += [row("x", 0, "b", 100), row("x", 1, "b", 160), row("y", 0, "b", 100), row("y", 1, "b", 50)]
    rows += [row("x", 0, "once", 100), row("y", 0, "once", 200)]
    np.testing.assert_allclose(gains(rows, "a", "b", 2), [[10, 50], [50, -100]])
    np.testing.assert_allclose(gains(rows, "a", "once", 2), [[10, 75], [20, 50]])


def test_tables_show_what_messages_gain():
    found = {("single", 2): {"pass": np.array([[1.0, 5.0]])}, ("single", 0): {"pass": np.array([[0.0, 2.0]])}}
    lines = placed_table(found)
    assert lines[1] == ["single", "2 rounds", "3.00", "+2.00 ± 1.00"]
    assert lines[2] == ["single", "none", "1.00", ""]
    common = {"view": "groups", "label": "set", "first": 0.5, "best_of_eight": 0.75}
    rows = [common | {"rounds": rounds, "correlation": at} for rounds, at in ((2, 0.5), (2, 0.7), (0, 0.25), (0, 0.25))]
    line = judged_table(rows)[1]
    assert line[:4] == ["groups", "set", "0.600 ± 0.141", "0.250 ± 0.000"]
