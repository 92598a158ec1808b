"""Rooms and floors of the package: who may import whom, and who does.

``python -m tests.floors`` prints the rooms, what each imports, and its size.
"""

import ast
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = {
    "errors": 0,
    "plumbing": 1,
    "pretrained": 0,
    "problem": 2,
    "simulator": 3,
    "capture": 4,
    "formats": 4,
    "environment": 4,
    "heuristics": 5,
    "runtime": 5,
    "policies": 6,
    "training": 7,
    "placers": 8,
    "planning": 9,
    "placing": 10,
    "evaluation": 10,
    "cli": 11,
    "__init__": 12,
    "__main__": 12,
}
"""Directories and modules of the package: one imports from lower floors only, and those of a floor not each other."""


def modules(package: Path) -> dict[str, Path]:
    """All modules below a package's folder, by their full name; a package's own code is ``name.__init__``."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        names[".".join((package.name, *path.relative_to(package).with_suffix("").parts))] = path
    return names


@cache
def imports(path: Path) -> set[str]:
    """Full names that a file imports, also inside functions and for type checking only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{path}: relative import")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imported_modules(package: Path) -> dict[str, set[str]]:
    """Of each module of a package, which others of it are imported."""
    known = modules(package)
    return {name: {other for full in imports(path) for other in _owners(full, known)} for name, path in known.items()}


def _owners(full: str, known: Iterable[str]) -> set[str]:
    """The module that holds an imported name: the longest that is a beginning of it."""
    parts = full.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        for candidate in (name, f"{name}.__init__"):
            if candidate in known:
                return {candidate}
    return set()


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first one again at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def room(module: str) -> str:
    """The room of a module ``placeto.room...``."""
    return module.split(".")[1]


def wrong_imports(graph: dict[str, set[str]]) -> list[str]:
    """A sentence for each import that goes up, or across a floor."""
    wrong = []
    for module, others in graph.items():
        for other in sorted(others):
            here, there = room(module), room(other)
            if here != there and FLOORS[there] >= FLOORS[here]:
                wrong.append(f"{module} (floor {FLOORS[here]}) imports {other} (floor {FLOORS[there]})")
    return wrong


def table(package: Path) -> str:
    """The rooms as a markdown table: floor, files, lines, and what each imports."""
    graph, paths = imported_modules(package), modules(package)
    lines = ["| floor | room | files | lines | imports |", "| ---: | --- | ---: | ---: | --- |"]
    for name, floor in FLOORS.items():
        own = [module for module in graph if room(module) == name]
        below = sorted({room(other) for module in own for other in graph[module]} - {name}, key=list(FLOORS).index)
        size = sum(len(paths[module].read_text().splitlines()) for module in own)
        lines.append(f"| {floor} | `{name}` | {len(own)} | {size} | {', '.join(below)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(ROOT / "placeto"))
