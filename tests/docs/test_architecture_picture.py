"""The page on architecture and its picture name files that there are, and the picture is the one that is drawn."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.architecture_picture import ARROWS, BOXES, HEIGHT, SVG, WIDTH, picture

ROOT = Path(__file__).parents[2]
PAGES = "architecture.md", "method.md"


def test_the_picture_is_the_one_that_is_drawn() -> None:
    assert SVG.read_text() == picture(), "draw it anew: python docs/architecture_picture.py"
    ElementTree.fromstring(picture())


def test_the_picture_names_files_that_there_are() -> None:
    files = [line for box in BOXES.values() for line in box.lines if line.endswith(".py")]
    assert len(files) > 12
    assert [file for file in files if not (ROOT / "placeto" / file).is_file()] == []


def test_boxes_and_arrows_are_inside_of_the_picture() -> None:
    for box in BOXES.values():
        assert box.left + box.width <= WIDTH
        assert box.top + box.height <= HEIGHT
        assert 8 * max(map(len, box.lines)) * 0.85 <= box.width, box.title  # a letter of size 12 is under 7 wide
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for *ends, _ in ARROWS for x, y in (ends[:2], ends[2:]))


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_files_that_there_are(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    named = re.findall(r"`([\w/]+/(?:\w+\.py)?)`", text) + re.findall(r"`(\w+\.py)`", text)
    assert len(named) > 8
    assert [name for name in named if not any((ROOT / top / name).exists() for top in ("placeto", "."))] == []
