from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from experiments.ablations import CHANGES, DEFAULT, AblationConfig, difference, main, relative, variant
from placeto.evaluation.comparison import Row, load_rows
from placeto.training.config import LearningConfig, TrainConfig, check_config, default_config


def rows(name: str, values: list[list[float]]) -> list[Row]:
    """From (S, C) makespans."""
    return [
        {"graph": f"g{c}", "placer": name, "seed": seed, "relative": value}
        for seed, of in enumerate(values)
        for c, value in enumerate(of)
    ]


def test_differences_are_paired() -> None:
    """The graphs differ by far more than the variants; of pairs only what is left counts."""
    both = rows("worse", [[0.52, 0.91], [0.52, 0.93]]) + rows(DEFAULT, [[0.5, 0.9], [0.5, 0.9]])
    assert relative(both, "worse").tolist() == [[0.52, 0.91], [0.52, 0.93]]
    found = difference(both, "worse")
    assert found.mean == pytest.approx(0.02)
    assert found.over_graphs == pytest.approx(0.0), "0.02 on either"
    assert found.over_seeds == pytest.approx(0.005), "0.015 and 0.025"
    one = difference(rows("p", [[0.5, 0.7]]) + rows(DEFAULT, [[0.5, 0.5]]), "p")
    assert (one.mean, one.over_graphs) == (pytest.approx(0.1), pytest.approx(0.1))
    assert np.isnan(one.over_seeds)


def test_each_variant_changes_what_it_says_and_nothing_else() -> None:
    assert variant(DEFAULT, "out") == TrainConfig("out")
    seen = []
    for name in CHANGES:
        config = variant(name, "out")
        check_config(config)
        assert config not in seen, f"{name} is the same as another"
        seen.append(config)
        default = asdict(default_config(config.placer, "out"))
        changed = {
            f"{part}.{key}"
            for part in ("policy", "env", "learning")
            for key, value in asdict(config).get(part, {}).items()
            if value != default[part][key]
        }
        assert changed == set(CHANGES[name]) - {"placer"}
    with pytest.raises(SystemExit, match="no variant is called 'foo'; variants: default, no messages"):
        variant("foo", "out")


def test_one_command_makes_table_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.ablations.split_size", lambda family, split: 2)
    small = LearningConfig(graphs=1, supervised_moves=2, labels=2, annealed=0.0)
    changes = {DEFAULT: {"learning": small}, "small": {"placer": "placeto-paper", "policy.rounds": 1}}
    monkeypatch.setattr("experiments.ablations.CHANGES", changes)
    config = AblationConfig(
        out=tmp_path / "out",
        family="ptb",
        cluster="2xv100",
        variants=("small",),
        minutes=0.005,
        seeds=2,
        processes=1,
    )
    main(config)
    text = capsys.readouterr().out
    assert (tmp_path / "out" / "ablations.md").read_text() == text[:-1]
    assert (tmp_path / "out" / "ablations.png").stat().st_size > 10_000
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| default", "| small"]
    assert len(load_rows(tmp_path / "out" / "test.json")) == 2 * 2 * 2
    main(config)
    assert capsys.readouterr().out == text, "all was there"
