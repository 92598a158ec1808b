import pytest

from placeto.problem.graph.module_paths import around, inside, unit_of


@pytest.mark.parametrize(
    ("path", "whole", "unit"),
    [
        ("encoder.layers.3.attention.query", (), "encoder.layers.3"),
        ("encoder.layers.3", (), "encoder.layers.3"),
        ("experts.1.layers.2", (), "experts.1"),
        ("encoder.norm", (), "encoder.norm"),
        ("", (), ""),
        ("encoder.norm", ("encoder",), "encoder"),
        ("encoder.layers.3.attention.query", ("encoder.layers.3.attention",), "encoder.layers.3"),
        ("encoder.norms", ("encoder.norm",), "encoder.norms"),
    ],
)
def test_a_unit_is_a_block_or_a_module_that_stays_whole(path: str, whole: tuple[str, ...], unit: str) -> None:
    assert unit_of(path, whole) == unit


def test_names_that_begin_alike_are_no_parents() -> None:
    assert inside("a.b", "a")
    assert inside("a", "a")
    assert not inside("ab", "a")
    assert around("") == []
