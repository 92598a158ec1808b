"""The page on architecture and its picture name files that there are."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PAGES = "architecture.md", "method.md"


def test_the_picture_names_files_that_there_are() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "architecture.svg")
    named = [each.text for each in picture.iter() if each.text and re.fullmatch(r"[\w/]+(\.py|/)", each.text)]
    assert len(named) > 12
    assert [name for name in named if not (ROOT / "placeto" / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_files_that_there_are(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    named = re.findall(r"`([\w/]+/(?:\w+\.py)?)`", text) + re.findall(r"`(\w+\.py)`", text)
    assert len(named) > 8
    assert [name for name in named if not any((ROOT / top / name).exists() for top in ("placeto", "."))] == []
