"""Compiled kernels in files, which the next process reads.

numba finds the folder, and turns a compiled kernel into bytes and back. Its own files aren't used: it assumes that each
is whole, and that it is compiled from the present source, of which it compares one file. After a full disk, or after an
upgrade, both may be false. Here each file has one kernel, and begins with a seal: a digest of all that the kernel is
compiled from, and of what follows in the file. A kernel whose file lacks the right seal is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core.caching import FunctionCache, NullCache
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps
from numba.extending import _Intrinsic

_SEAL = hashlib.sha256().digest_size  # bytes


class NotKeptWarning(UserWarning):
    """A compiled kernel can't be written to a file."""


def kernel_cache(kernel: Any) -> Any:
    """Return the cache of a kernel, in files beside its source, or in numba's folder for the user.

    If neither folder can be written, the cache keeps nothing, and warns of that.
    """
    try:
        return _KernelCache(kernel)
    except RuntimeError:  # numba finds no folder
        return _Nowhere()


class _KernelCache(FunctionCache):
    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel.py_func)
        self._cache_file: Any = _SealedFiles(Path(self._cache_path), self._impl.filename_base, kernel)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _tell(error.strerror or str(error))


class _Nowhere(NullCache):
    def save_overload(self, sig: Any, cres: Any) -> None:
        _tell("neither the folder of the package nor the user's folder for caches can be written")


@cache
def _tell(reason: str) -> None:
    """Warn, once in a process for each reason; numba resets Python's own record of warnings."""
    sentence = "what is compiled is not kept, and the next process compiles it again"
    warnings.warn(f"{sentence}: {reason}; set NUMBA_CACHE_DIR to a folder with room", NotKeptWarning, stacklevel=1)


class _SealedFiles:
    """The files of a kernel, one for each signature, in place of `numba.core.caching.IndexDataCacheFile`."""

    def __init__(self, folder: Path, name: str, kernel: Any) -> None:
        self._folder, self._name, self._kernel = folder, name, kernel

    def load(self, key: Any) -> Any:
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        seal = self._seal(key, content[_SEAL:])
        return pickle.loads(content[_SEAL:]) if content[:_SEAL] == seal else None

    def save(self, key: Any, data: Any) -> None:
        content = dumps(data)
        path = self._path(key)
        written = path.with_suffix(f".{os.getpid()}")
        try:
            written.write_bytes(self._seal(key, content) + content)
            written.replace(path)
        except OSError:
            written.unlink(missing_ok=True)
            raise

    def flush(self) -> None:
        """Do nothing: what is outdated isn't read."""

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._name}.{hashlib.sha256(repr(key[0]).encode()).hexdigest()[:16]}.nbc"

    def _seal(self, key: Any, content: bytes) -> bytes:
        head = numba.__version__, key, digest(self._kernel)
        return hashlib.sha256(repr(head).encode() + content).digest()


@cache
def digest(kernel: Any) -> str:
    """Return a digest of all that a kernel is compiled from.

    This is its code, and all that it takes in from elsewhere, directly or not: kernels, constants, and the fields of
    named tuples. How kernels are compiled counts, too. A kernel doesn't depend on the Python code that calls it.
    """
    found = hashlib.sha256(_HOW)
    for part in _parts(kernel):
        found.update(repr(part).encode() + b"\0")
    return found.hexdigest()


def _parts(kernel: Any) -> Iterator[object]:
    pending, seen = [kernel], set()
    while pending:
        value = pending.pop()
        if isinstance(value, Dispatcher | FunctionType | _Intrinsic):  # constants count each time: two may be equal
            if id(value) in seen:
                continue
            seen.add(id(value))
        if isinstance(value, Dispatcher):
            yield [(name, sorted(of) if isinstance(of, set) else of) for name, of in value.targetoptions.items()]
        function = getattr(value, "py_func", value._defn if isinstance(value, _Intrinsic) else value)
        if isinstance(value, ModuleType):
            continue  # what is read from it is pending
        if _is_foreign(function):
            yield function.__module__, getattr(function, "__qualname__", "")
        elif isinstance(function, FunctionType):
            names: list[str] = []
            for code in _codes(function.__code__):
                names += code.co_names
                yield (
                    function.__module__,  # by which the file of a kernel finds what it takes in
                    code.co_code,
                    code.co_names,
                    [const for const in code.co_consts if not isinstance(const, CodeType)],
                )
            read = [function.__globals__[name] for name in names if name in function.__globals__]
            modules = [vars(module) for module in read if isinstance(module, ModuleType) and not _is_foreign(module)]
            pending += read + [module[name] for module in modules for name in names if name in module]
            pending += [cell.cell_contents for cell in function.__closure__ or ()]
            pending += function.__defaults__ or ()
        elif isinstance(value, type):
            yield (
                value.__module__,
                value.__qualname__,
                getattr(value, "_fields", ()),
                getattr(value, "_field_defaults", {}),
            )
        else:
            yield value.tolist() if isinstance(value, np.ndarray) else value


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of all functions in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _is_foreign(value: Any) -> bool:
    """Whether a function, class or module is one of numba, numpy or Python, whose versions stand for what they do."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
    return name.split(".")[0] in ("builtins", "math", "numba", "numpy", "typing")


_HOW = b"".join((Path(__file__).parent / f"{name}.py").read_bytes() for name in ("compiling", "by_reference"))
