"""How often Python searches for cycles while planning."""

import gc

import pytest

from placeto.planning.collecting import collected_seldom


@collected_seldom()
def failing() -> None:
    raise KeyError(gc.get_threshold())


def test_it_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError) as within:
        failing()
    assert within.value.args[0] > before
    assert gc.get_threshold() == before
