"""Kernels call large kernels where they are.

numba copies a kernel into each kernel that calls it, and into what calls that, and compiles all of it each time. LLVM
inlines small kernels only. So a large one is compiled once: whatever calls it names its symbol, and loads it first.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from llvmlite import binding
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.cpu_options import FastMathOptions
from numba.core.registry import CPUDispatcher

_LARGE = 16_000  # bytes of LLVM code, from which on a kernel is large; 4,000 take as long to compile


_MARK = " apart"  # at the end of the name of a large kernel's library in a file


class Kernel(CPUDispatcher):
    """A kernel that others call where it is, if it is large."""

    def compile(self, sig: Any) -> Any:
        """Compile it for such arguments, or read it from its file.

        Python collects no garbage meanwhile: it would take an eighth of the time, since numba makes many objects.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            try:
                return super().compile(sig)
            except _OtherSymbol:
                self._cache.flush()  # type: ignore[attr-defined]
                return super().compile(sig)
        finally:
            if collects:
                gc.enable()

    def add_overload(self, compiled: Any) -> None:
        """Take in what was compiled, or read from a file, for some types of arguments."""
        super().add_overload(compiled)
        library = compiled.library
        library._reload_init.update(compiled.reload_init or ())  # what was read from a file has forgotten it
        module, name = self.py_func.__module__, self.py_func.__qualname__
        read = library.name.endswith(_MARK)
        if read or (
            _is_global(self.py_func)
            and not library._disable_inspection  # it was read, and isn't marked
            and len(library._get_module_for_linking().as_bitcode()) > _LARGE
        ):
            library.__class__ = _Apart
            library.wrapper = compiled.fndesc.llvm_cpython_wrapper_name
            symbol = compiled.fndesc.mangled_name
            library._reload_init = {partial(_load, module, name, compiled.signature.args, symbol)}


class KernelCompiler(Compiler):
    """Names symbols by module and function alone: so a kernel of another process, in a file, is found by its name."""

    def __init__(
        self, typing: Any, target: Any, library: Any, args: Any, returned: Any, flags: Flags, own: Any
    ) -> None:
        super().__init__(typing, target, library, args, returned, _KernelFlags(flags), own)

    def _compile_bytecode(self) -> Any:
        identity = self.state.func_id
        if _is_global(identity.func):
            identity.unique_id = 0
            identity.unique_name = f"{identity.func_qualname}$0"
        return super()._compile_bytecode()


class _KernelFlags(Flags):
    """How a kernel is compiled; equal where that of a function of numpy, which it calls, would be the same.

    numba looks up those functions by all flags of the kernel, and compiles them again where any differs.
    """

    def _summary_args(self) -> list[tuple[str, Any]]:
        """What is set, of which symbols' names are made: the same in each process, as the order of a set is not."""
        return [
            (name, sorted(value.flags) if isinstance(value, FastMathOptions) else value)
            for name, value in super()._summary_args()
        ]

    def __hash__(self) -> int:
        return _HASH

    def __eq__(self, other: object) -> bool:
        return self is other or all(getattr(self, name) == getattr(other, name, None) for name in _HANDED_ON)


_HANDED_ON = "nrt", "fastmath", "error_model", "forceinline"  # flags that functions take over from who calls them
_HASH = hash(Flags())


class _Apart(JITCodeLibrary):
    """What was compiled of a large kernel."""

    wrapper: str  # the name of what Python calls, if there is any

    def _get_module_for_linking(self) -> Any:
        """Nothing of it is copied into kernels that call it: they have declared the symbol."""
        return binding.parse_assembly(str(self._codegen._create_empty_module(self.name)))

    def serialize_using_object_code(self) -> Any:
        """As numba keeps it in a file, without LLVM's code: it is read for the names of what Python calls alone."""
        names = str(self._codegen._create_empty_module(self.name))
        if self._codegen._engine.is_symbol_defined(self.wrapper):
            names += f'define void @"{self.wrapper}"() {{ unreachable }}\n'
        code = binding.parse_assembly(names).as_bitcode()
        return f"{self.name}{_MARK}", "object", (self._get_compiled_object(), code)


def _is_global(function: Callable[..., Any]) -> bool:
    """Whether its module has a kernel of this function under its name."""
    found = getattr(sys.modules.get(function.__module__), function.__qualname__, None)
    return getattr(found, "py_func", None) is function


class _OtherSymbol(Exception):
    """A kernel in a file calls another by a name that this one doesn't have: the process would crash."""


def _load(module: str, name: str, types: tuple[Any, ...], symbol: str) -> None:
    """Read a kernel from its file, or compile it, before another that calls it by its symbol is read."""
    kernel = getattr(import_module(module), name)
    kernel.compile(types)
    if kernel.overloads[tuple(types)].fndesc.mangled_name != symbol:
        raise _OtherSymbol(symbol)
