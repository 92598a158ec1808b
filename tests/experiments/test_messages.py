from dataclasses import replace

import numpy as np
import pytest

from experiments.messages import KINDS, MessagesConfig, gains, main, table
from experiments.recipes import Recipe


def small(out, **changes):
    recipe = Recipe(graphs=("ptb:2",), validation=("ptb:1",), presets=("2xv100",), random_clusters=0)
    learning = replace(recipe.training.learning, graphs=2, supervised_moves=2, annealed=0.0, labels=4, replay=10)
    recipe = replace(recipe, training=replace(recipe.training, iterations=1, validate_every=1, learning=learning))
    common = {"families": ("ptb",), "count": 1, "clusters": ("2xv100",), "simulations": (100,), "processes": 1}
    return MessagesConfig(out, recipe=recipe, **common | {"seeds": 1} | changes)


def test_one_command_trains_each_kind_and_makes_table_and_picture(tmp_path, capsys):
    main(small(tmp_path, kinds=("two rounds", "none")))
    printed = capsys.readouterr().out
    assert (tmp_path / "messages.md").read_text().strip() in printed
    assert (tmp_path / "messages.png").stat().st_size > 1000
    made = {name: (tmp_path / name / "seed-0" / "pretrained.safetensors").stat() for name in ("two-rounds", "none")}
    assert made["none"].st_size < made["two-rounds"].st_size
    main(small(tmp_path, kinds=("two rounds", "none")))
    assert (tmp_path / "none" / "seed-0" / "pretrained.safetensors").stat().st_mtime_ns == made["none"].st_mtime_ns
    assert f"{tmp_path}/none/seed-0" not in capsys.readouterr().out, "trained again though it was there"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"kinds": ("none", "smoke")}, f"--kinds must be of {', '.join(KINDS)}, not smoke"),
        ({"kinds": ()}, "not empty"),
        ({"seeds": 0}, "--seeds must be at least 1, not 0"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, changes, error):
    with pytest.raises(SystemExit, match=error):
        main(small(tmp_path, **changes))


def test_gains_are_of_the_same_graph_cluster_and_seed():
    def row(graph, seed, placer, us):
        return {"graph": graph, "cluster": "c", "seed": seed, "placer": placer, "makespan_us": us}

    rows = [row(g, s, "a", us) for g, s, us in (("x", 0, 90), ("x", 1, 80), ("y", 0, 50), ("y", 1, 100))]
    rows += [row("x", 0, "b", 100), row("x", 1, "b", 160), row("y", 0, "b", 100), row("y", 1, "b", 50)]
    rows += [row("x", 0, "once", 100), row("y", 0, "once", 200)]
    np.testing.assert_allclose(gains(rows, "a", "b", 2), [[10, 50], [50, -100]])
    np.testing.assert_allclose(gains(rows, "a", "once", 2), [[10, 75], [20, 50]])


def test_the_table_compares_with_the_first_kind():
    found = {"pairs": {"one pass": np.array([[1.0, 3.0]])}, "none": {"one pass": np.array([[0.0, 4.0]])}}
    lines = table(found, {"pairs": 1000, "none": 10})
    assert lines[0] == ["messages", "parameters", "one pass, %", "over pairs"]
    assert lines[2] == ["pairs", "1,000", "2.00", ""]
    assert lines[3] == ["none", "10", "2.00", "+0.00 ± 1.00"]
