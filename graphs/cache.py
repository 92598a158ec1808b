"""A cache of captured graphs on disk: a file for each graph, which is read as long as none of its code has changed."""

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
    """Return the folder of the files: ``$PLACETO_CACHE``, else ``placeto`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if os.environ.get("PLACETO_CACHE"):
        return Path(os.environ["PLACETO_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "placeto"
    return Path.home() / ".cache" / "placeto"


def location(module: str, content: str) -> Path:
    """Return the path of the file of a graph that a module makes.

    Its name has a hash of the content, of torch's version, and of the source of the module and of all modules that it
    imports, directly or not, from its own package and from Placeto's. When any of these changes, the graph is captured
    again.

    Args:
        module: name of the module that builds the model.
        content: a text that differs between all graphs of the module.
    """
    import torch

    for name in (*_CAPTURE, module):
        import_module(name)
    digest = sha256(f"{torch.__version__}\n{_source_hash(module)}\n{content}".encode()).hexdigest()
    return directory() / f"{module.rpartition('.')[2]}-{digest[:24]}.zip"


def cached(path: Path, capture: Callable[[], ComputationGraph]) -> ComputationGraph:
    """Read the graph of a file; if there is no file, or if it is damaged, capture the graph and write it.

    Several processes may do this at the same time, as a file is put in place in one step. If a file can't be written,
    a message on stderr says so, and the graph is returned all the same.
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
    """Return a module and all modules that it imports, directly or not, from its own package and from Placeto's."""
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
