import pytest

from experiments.fits import FitConfig
from experiments.training_curve import NAMES, CurveConfig, main, wanted

SMALL = FitConfig(train=("ptb:2",), held_out=("ptb",), each=2, labels=4, batch=2)


def small(out, **changes):
    settings = {"share": (0.5, 1.0), "hidden": (4, 32), "rounds": (0, 2), "steps": (1, 2), "seeds": 1}
    return CurveConfig(out, **settings | {"default_steps": 2, "fits": SMALL} | changes)


def test_one_command_fits_and_makes_table_and_picture(tmp_path, capsys):
    main(small(tmp_path))
    printed = capsys.readouterr().out
    assert (tmp_path / "training_curve.md").read_text().strip() in printed
    assert (tmp_path / "training_curve.png").stat().st_size > 1000
    assert len([line for line in printed.splitlines() if line.startswith("| ")]) == 2 + 8
    assert len(list((tmp_path / "fits").glob("*.json"))) == 5  # the defaults are fitted once


def test_each_setting_is_varied_alone(tmp_path):
    for name, fits in wanted(small(tmp_path, seeds=2)).items():
        assert len({getattr(fit, name) for fit in fits}) == 2
        for other in {*NAMES, "view", "label"} - {name}:
            assert len({getattr(fit, other) for fit in fits}) == 1, (name, other)


def test_no_seed_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="--seeds must be at least 1, not 0"):
        main(small(tmp_path, seeds=0))
