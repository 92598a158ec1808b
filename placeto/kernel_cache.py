"""Compiled kernels in files, which the next process reads.

numba names the files and finds them. It assumes that each is whole, and compiled from the present source. After a full
disk, or after an upgrade, that may be false. So each file here begins with a seal: a digest of the source that kernels
are compiled from, and of all that follows in the file. A kernel whose file lacks the right seal is compiled again.
"""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.serialize import dumps


class NotKeptWarning(UserWarning):
    """A compiled kernel can't be written to a file."""


def kernel_cache(function: Callable[..., Any], origin: str) -> Any:
    """Return the cache of a function's kernel, in files beside its source, or in numba's folder for the user.

    If neither folder can be written, the cache keeps nothing, and warns of that.

    Args:
        function: the function of the kernel.
        origin: a digest of what kernels are compiled from; files with another digest are not read.
    """
    try:
        return _KernelCache(function, origin)
    except RuntimeError:  # numba finds no folder
        return _Nowhere()


class _KernelCache(FunctionCache):
    def __init__(self, function: Callable[..., Any], origin: str) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp(), origin
        self._cache_file = _SealedFiles(self._cache_path, self._impl.filename_base, stamp)

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


class _SealedFiles(IndexDataCacheFile):
    """The index and the data of a kernel. Data has its key: two processes may give one file name to different data."""

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        of, data = super().load(key) or (None, None)
        return data if of == key else None

    def _load_index(self) -> Any:
        return self._read(self._index_path) or {}

    def _save_index(self, overloads: Any) -> None:
        self._write(self._index_path, overloads)

    def _load_data(self, name: str) -> Any:
        return self._read(self._data_path(name))

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _read(self, path: str) -> Any:
        try:
            content = Path(path).read_bytes()
        except OSError:
            return None
        seal = self._seal(content[_SEAL:])
        return pickle.loads(content[_SEAL:]) if content[:_SEAL] == seal else None

    def _write(self, path: str, found: Any) -> None:
        content = dumps(found)
        with self._open_for_write(path) as file:
            file.write(self._seal(content) + content)

    def _seal(self, content: bytes) -> bytes:
        return hashlib.sha256(repr((self._version, self._source_stamp)).encode() + content).digest()


_SEAL = hashlib.sha256().digest_size  # bytes
