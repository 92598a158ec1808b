"""What kernels are compiled to, in files that the next process reads.

numba finds the files and names them. It trusts what it finds: that it is whole, and compiled from what kernels are
made of now. After a full disk, or after an upgrade, neither holds. So each file here begins with a seal, a digest of
what the kernels are made of and of all that follows. A file without the right seal is compiled again.
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
    """What is compiled can't be written to a file."""


def kernel_cache(function: Callable[..., Any], origin: str) -> Any:
    """Where a kernel of this function is kept: beside its source, or where numba keeps those of a user.

    Args:
        origin: a digest of what kernels are compiled from; files of another are not read.
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
    """Once in a process; numba resets what Python remembers of warnings."""
    sentence = "what is compiled is not kept, and the next process compiles it again"
    warnings.warn(f"{sentence}: {reason}; set NUMBA_CACHE_DIR to a folder with room", NotKeptWarning, stacklevel=1)


class _SealedFiles(IndexDataCacheFile):
    """The index and the data of a kernel. Data names its key: two processes may give one name to different data."""

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
