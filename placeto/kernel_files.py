"""Finds the files on which the compiled kernels of a package depend.

When a kernel is compiled it takes in other kernels, constants and the fields of named tuples, of its own file or of
others. They are found in the source: the search begins at each definition that mentions `compiled`, and follows the
names that it mentions, through imports too. A kernel doesn't depend on the Python code that calls it.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MAKER = "compiled"  # makes kernels, and is in the module `compiling`


class Mention(NamedTuple):
    """A name in a definition, and the attribute that the definition reads from it, or None."""

    name: str
    attribute: str | None


def digest_of_kernels(folder: Path) -> str:
    """Return a digest of the content of all files that the kernels of a package's folder are compiled from.

    The digest is kept in ``__pycache__/kernels.sha256``. It is read from there as long as no file of the package
    changes, because `kernel_files` takes time. If the digest changes, compiled kernels in the folder are deleted. If
    the folder can't be written, the digest is that of all files of the package.
    """
    stamp, before = folder / "__pycache__" / "kernels.sha256", ["", ""]
    with suppress(OSError, ValueError):
        before = stamp.read_text().split()
    everything = _digest(folder, sorted(folder.rglob("*.py")))
    if len(before) == 2 and before[0] == everything and len(before[1]) == len(everything):
        return before[1]
    with suppress(OSError):
        stamp.parent.mkdir(exist_ok=True)
    if not os.access(stamp.parent, os.W_OK):
        return everything
    kernels = _digest(folder, kernel_files(folder))
    with suppress(OSError):  # a full disk: the digest is computed again next time
        for made in folder.glob("**/*.nb[ci]*") if before[1:] != [kernels] else ():
            made.unlink(missing_ok=True)
        written = stamp.with_suffix(f".{os.getpid()}")
        written.write_text(f"{everything}\n{kernels}\n")
        written.replace(stamp)
    return kernels


def _digest(folder: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(repr((path.relative_to(folder).as_posix(), path.read_bytes())).encode())
    return digest.hexdigest()


def kernel_files(folder: Path) -> list[Path]:
    """Return the files of a package's folder that have kernels, or what kernels take in, in the order of their paths.

    Raises:
        SyntaxError: a file isn't valid Python.
    """
    files = {_module(path, folder): path for path in sorted(folder.rglob("*.py"))}
    maker = f"{folder.name}.compiling"
    found = {maker} & files.keys()
    read: dict[str, Mapping[str, list[ast.stmt]]] = {}

    def binding(module: str, name: str) -> list[ast.stmt]:
        if module not in read:
            read[module] = _bindings(ast.parse(files[module].read_bytes(), str(files[module])))
        return read[module].get(name, [])

    pending: list[tuple[str, str]] = []
    for module, path in files.items():
        if _MAKER.encode() in path.read_bytes() and any(
            (maker, _MAKER) in _sources(statement, Mention(_MAKER, None), files)
            for statement in binding(module, _MAKER)
        ):
            pending += [(module, name) for name, of in read[module].items() if any(map(_makes_a_kernel, of))]
    seen: set[tuple[str, str]] = set()
    while pending:
        module, name = pending.pop()
        if (module, name) in seen:
            continue
        seen.add((module, name))
        for statement in binding(module, name):
            if isinstance(statement, ast.ImportFrom):
                pending += _sources(statement, Mention(name, None), files)
            elif not isinstance(statement, ast.Import):
                found.add(module)
                for mention in _mentions(statement):
                    pending.append((module, mention.name))
                    for other in binding(module, mention.name):
                        pending += _sources(other, mention, files)
    return [path for module, path in files.items() if module in found]


def _module(path: Path, folder: Path) -> str:
    parts = (folder.name, *path.relative_to(folder).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _bindings(tree: ast.Module) -> Mapping[str, list[ast.stmt]]:
    """Return the statements that bind each name of a module; for an import within another statement, the import."""
    bindings: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bindings.setdefault(statement.name, []).append(statement)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    bindings.setdefault(alias.asname or alias.name.split(".")[0], []).append(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bindings.setdefault(node.id, []).append(statement)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                bindings.setdefault(node.name, []).append(statement)
    return bindings


def _makes_a_kernel(statement: ast.stmt) -> bool:
    imports = isinstance(statement, ast.Import | ast.ImportFrom)
    return not imports and any(mention.name == _MAKER for mention in _mentions(statement))


def _mentions(statement: ast.stmt) -> Iterator[Mention]:
    """Yield the names that a definition reads from outside of itself."""
    own: set[str] = set()
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        own = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
        own |= {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and node.id not in own:
            yield Mention(node.id, None)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in own:
            yield Mention(node.value.id, node.attr)


def _sources(statement: ast.stmt, mention: Mention, files: Mapping[str, Path]) -> list[tuple[str, str]]:
    """Return module and name of what an import binds to a mentioned name.

    If the import binds a module, it is the attribute that is read from this module.
    """
    sources: list[tuple[str, str]] = []
    if isinstance(statement, ast.ImportFrom) and statement.module is not None:
        for alias in statement.names:
            if (alias.asname or alias.name) == mention.name:
                module = f"{statement.module}.{alias.name}"
                if module in files and mention.attribute is not None:
                    sources.append((module, mention.attribute))
                elif statement.module in files:
                    sources.append((statement.module, alias.name))
    return sources
