"""The documentation site has every page of the repository, and its reference names what there is."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from docs.site_files import site_files

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text()
API = sorted((ROOT / "docs" / "site" / "api").glob("*.md"))
NAMES = [name for page in API for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]


def test_every_page_is_reached_from_the_menu() -> None:
    menu = set(re.findall(r": (\S+\.md)$", CONFIG, re.MULTILINE))
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")}
    assert pages - menu == set()
    assert {f"api/{page.name}" for page in API} - menu == set()
    assert all((ROOT / page).is_file() or (ROOT / "docs" / "site" / page).is_file() for page in menu)


def test_what_pages_link_to_is_on_the_site() -> None:
    files = {path.as_posix() for path in site_files()}
    for path in ("README.md", "docs/schedules.png", "docs/architecture.svg", "experiments/results/demo.md", "LICENSE"):
        assert path in files
    assert all((ROOT / path).is_file() for path in files)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_names_what_there_is(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    found = getattr(import_module(module), attribute, None) or import_module(name)
    assert (found.__doc__ or "").strip(), f"{name} has no docstring"


def test_the_public_names_are_in_the_reference() -> None:
    import placeto

    described = {name.rpartition(".")[2] for name in NAMES}
    errors = {name for name in placeto.__all__ if name.endswith("Error")}
    assert set(placeto.__all__) - errors - described == set()
