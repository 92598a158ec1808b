from dataclasses import replace

from experiments.recipes import Recipe
from experiments.training_cost import CostConfig, curve, main, table
from placeto.training.config import LearningConfig


def small(out, **changes):
    learning = LearningConfig(
        reinforcement=0.5, graphs=2, replicas=2, moves=3, supervised_moves=3, labels=4, annealed=0.0
    )
    recipe = Recipe(graphs=("ptb:2",), validation=("ptb:1",), presets=("2xv100",), random_clusters=0)
    recipe = replace(recipe, training=replace(recipe.training, iterations=4, validate_every=2, learning=learning))
    return CostConfig(out, recipe=recipe, **{"seeds": 2} | changes)


def test_one_command_trains_each_seed_and_draws_what_was_validated(tmp_path, capsys):
    main(small(tmp_path))
    printed = capsys.readouterr().out
    assert (tmp_path / "training_cost.md").read_text().strip() in printed
    assert (tmp_path / "training_cost.png").stat().st_size > 1000
    curves = [curve(tmp_path / f"seed-{seed}" / "run") for seed in range(2)]
    for points in curves:
        minutes, gains = zip(*points, strict=True)
        assert len(points) == 2
        assert 0.0 < minutes[0] < minutes[1]
        assert gains[0] <= gains[1] < 100.0


def test_the_table_has_what_was_reached_by_then_and_nothing_before():
    lines = table([[(1.0, 4.0), (3.0, 6.0)], [(2.5, 5.0)]], (0.5, 2.0, 3.0))
    assert lines[0] == ["", "0.5 min", "2 min", "3 min", "end", "minutes in all"]
    assert lines[2][1:4] == ["", "4.00", f"5.50 ± {0.5 * 2**0.5:.2f}"]
    assert lines[2][4].startswith("5.50 ± ")
    assert lines[2][5] == "2.8 ± 0.4"
