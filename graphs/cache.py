"""Graphs that were captured once, kept on disk: one file each, read again as long as no code behind it has changed."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path

from graphs import store
from placeto.problem.graph import ComputationGraph

_CAPTURE = "graphs.capture_progress", "placeto.capture.trace"  # imported late by families; their source counts, too


def directory() -> Path:
    """Where the files are: ``$PLACETO_CACHE``, else ``placeto`` in ``$XDG_CACHE_HOME`` or in ``~/.cache``."""
    if os.environ.get("PLACETO_CACHE"):
        return Path(os.environ["PLACETO_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "placeto"
    return Path.home() / ".cache" / "placeto"


def location(module: str, content: str) -> Path:
    """File of a graph that a module makes.

    The name is a hash of the content, of torch's version and of the source of all modules that this one imports,
    directly or not, from its own package and from Placeto's: when any of it changes, the graph is captured again.

    Args:
        module: name of the imported module that builds the model.
        content: what tells its graphs apart.
    """
    import torch

    for name in _CAPTURE:
        import_module(name)
    digest = sha256(f"{torch.__version__}\n{_source_hash(module)}\n{content}".encode()).hexdigest()
    return directory() / f"{module.rpartition('.')[2]}-{digest[:24]}.zip"


def cached(path: Path, capture: Callable[[], ComputationGraph]) -> ComputationGraph:
    """Read the graph of a file; if there is none, or it is damaged, capture the graph and write it.

    Processes may do this at the same time: a file is put in place in one step. Where it can't be written, that is
    said on stderr, and the graph is returned all the same.
    """
    try:
        return store.read(path)
    except FileNotFoundError:
        pass
    except (store.StoreError, OSError) as problem:
        print(f"{problem}; the graph is captured again", file=sys.stderr)
    graph = capture()
    # Files keep no signatures, and a problem's hash, which has them in it, must not differ from run to run.
    graph = replace(graph, signatures=("",) * graph.num_ops)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store.save([graph], path)
    except OSError as problem:
        print(f"{path}: can't be written ({problem.strerror}); the graph isn't kept", file=sys.stderr)
    return graph


@cache
def _source_hash(module: str) -> str:
    digest = sha256()
    for name in sorted(_imported(module)):
        digest.update(f"{name}\n".encode() + Path(str(sys.modules[name].__file__)).read_bytes())
    return digest.hexdigest()


def _imported(module: str) -> set[str]:
    """A module and all that it imports, directly or not, from its own package and from Placeto's."""
    packages = {module.split(".")[0], "graphs", "placeto"}
    found: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.walk(ast.parse(Path(str(sys.modules[name].__file__)).read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = resolve_name("." * node.level + (node.module or ""), sys.modules[name].__package__)
                parts = [f"{source}.{alias.name}" for alias in node.names]
                names = [part if part in sys.modules else source for part in parts]
            pending += [other for other in names if other.split(".")[0] in packages and other in sys.modules]
    return found
