"""The page of settings is the one that is made of the dataclasses, and names every setting."""

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from docs.settings_page import PAGE, PLACERS, page
from placeto.placers import LEARNED
from placeto.training.config import default_config


def test_the_page_is_the_one_that_is_made() -> None:
    assert PAGE.read_text() == page(), "make it anew: python -m docs.settings_page"


@pytest.mark.parametrize("placer", PLACERS)
def test_every_setting_is_there(placer: str) -> None:
    def names(settings: Any, prefix: str = "") -> list[str]:
        found = []
        for field in fields(settings):
            inner = getattr(settings, field.name)
            found += names(inner, f"{field.name}.") if is_dataclass(inner) else [prefix + field.name]
        return found

    text = PAGE.read_text()
    config = default_config(placer, "run")
    assert [name for name in names(config) if f"| `{name}` |" not in text] == []


def test_every_learned_placer_is_there_and_ranges_are() -> None:
    assert set(PLACERS) == set(LEARNED)
    text = PAGE.read_text()
    assert "| `learning.quantile` | number | 0 to 0.999 | `0.75` |" in text
