"""A room imports from lower floors only, and nothing imports in a circle: each can be read without those above it."""

from pathlib import Path

import pytest

from tests.floors import FLOORS, ROOT, find_cycle, imported_modules, imports, modules, room, table, wrong_imports

GRAPH = imported_modules(ROOT / "placeto")


def test_every_room_has_a_floor_and_says_what_lives_there() -> None:
    assert {room(name) for name in GRAPH} == set(FLOORS)
    for path in (ROOT / "placeto").rglob("__init__.py"):
        text = path.read_text()
        assert len(text.split('"""')[1]) > 80, f"{path}: says nothing of what lives there"
        assert "__all__" in text, f"{path}: exports nothing"


def test_rooms_import_from_lower_floors_only() -> None:
    assert wrong_imports(GRAPH) == []


@pytest.mark.parametrize("package", ["placeto", "graphs", "experiments"])
def test_nothing_imports_in_a_circle(package: str) -> None:
    assert find_cycle(imported_modules(ROOT / package)) == []


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    package = tmp_path / "placeto"
    files = {
        "problem/orders.py": "from placeto.problem import files\n",
        "problem/files.py": "def late():\n    from placeto.problem.orders import load\n",
        "simulator/schedule.py": "import placeto.cli.command\n",
        "cli/command.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import placeto.problem.files\n",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    graph = imported_modules(package)
    assert set(find_cycle(graph)) == {"placeto.problem.orders", "placeto.problem.files"}
    assert wrong_imports(graph) == ["placeto.simulator.schedule (floor 3) imports placeto.cli.command (floor 11)"]
    assert graph["placeto.cli.command"] == {"placeto.problem.files"}, "which type checkers read, and people"


def test_the_package_imports_neither_families_nor_experiments() -> None:
    for path in modules(ROOT / "placeto").values():
        assert not {name.split(".")[0] for name in imports(path)} & {"graphs", "experiments", "tests"}, path


def test_families_use_capture_and_problems_only() -> None:
    for path in modules(ROOT / "graphs").values():
        used = {name.split(".")[1] for name in imports(path) if name.startswith("placeto.")}
        assert used <= {"capture", "errors", "plumbing", "problem"}, path


def test_policies_do_not_import_one_another() -> None:
    names = {f"placeto.policies.one_shot.{name}" for name in ("constructive", "gdp", "grouper", "mlp", "seq2seq")}
    for name in names:
        assert not GRAPH[name] & names - {name}


@pytest.mark.parametrize("package", ["placeto", "graphs", "experiments"])
def test_files_stay_short(package: str) -> None:
    for path in modules(ROOT / package).values():
        assert len(path.read_text().splitlines()) <= 400, f"{path} is over 400 lines: split it"


def test_the_table_names_every_room() -> None:
    text = table(ROOT / "placeto")
    assert all(f"`{name}`" in text for name in FLOORS)
