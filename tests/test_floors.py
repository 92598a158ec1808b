"""A module imports only from floors below its own, so that each can be read without those above it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {
    0: ["units", "graph_memory", "graph_order", "graph", "topology", "cluster", "progress", "signals", "distributed"],
    1: ["cost", "_kernel", "_memory", "simulator", "grouping", "placer", "placement"],
    2: [
        "_observe",
        "features",
        "op_features",
        "env",
        "heuristics",
        "capture",
        "importers",
        "export",
        "executor",
        "plot",
    ],
    3: ["nn", "policies"],
    4: [
        "config",
        "reinforce",
        "rollout",
        "checkpoint",
        "learning",
        "learners",
        "load",
        "summary",
        "evaluate",
        "trainer",
    ],
    5: ["commands", "cli", "__main__", "__init__"],
}
# Within a floor: a module may import those that stand before it in its list.
BELOW = {name: (floor, rank) for floor, names in FLOORS.items() for rank, name in enumerate(names)}
# These stand on floors 0 and 1 only, whatever their own floor.
LOW = {"capture", "importers", "export", "executor", "plot"}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, also inside functions, but not those for type checking only."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(module: str) -> str | None:
    """Which entry of the floors a module of the package belongs to; None for one outside it."""
    pieces = module.split(".")
    if pieces[0] != "placeto" or len(pieces) == 1:
        return None
    return pieces[1] if pieces[1] in BELOW else pieces[1].split("_")[0]


def owner(path: Path) -> str:
    """The entry of the floors that a file belongs to; capture_ops.py belongs to capture."""
    name = path.relative_to(ROOT / "placeto").parts[0].removesuffix(".py")
    return name if name in BELOW else name.split("_")[0]


@pytest.mark.parametrize("path", modules("placeto"), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_from_below(path: Path) -> None:
    name = owner(path)
    assert name in BELOW, f"{path}: add {name!r} to the floors"
    for module in imports(path):
        assert module.split(".")[0] not in ("graphs", "experiments", "tests"), f"{path} imports {module}"
        other = part(module)
        if other is None or other == name or other not in BELOW:
            continue
        if name in LOW:
            assert BELOW[other][0] <= 1, f"{path} imports {module}, which is above floors 0 and 1"
        assert BELOW[other] < BELOW[name], f"{path} (floor {BELOW[name][0]}) imports {module} (floor {BELOW[other][0]})"


def test_policies_do_not_import_one_another() -> None:
    for path in modules("placeto/policies"):
        if path.stem == "__init__":
            continue
        others = {module.split(".")[2] for module in imports(path) if module.startswith("placeto.policies.")}
        assert others <= {"base", path.stem}, f"{path} imports {others}"


def test_families_use_capture_and_floor_0_only() -> None:
    for path in modules("graphs"):
        for module in imports(path):
            assert part(module) in (None, "capture", "graph", "cluster", "progress"), f"{path} imports {module}"


def test_files_stay_short() -> None:
    for package in ("placeto", "graphs", "experiments"):
        for path in modules(package):
            assert len(path.read_text().splitlines()) <= 400, f"{path} is over 400 lines: split it"
