"""Kernels call large kernels by their symbols, in place of copies.

numba copies a kernel into each kernel that calls it, and into the callers of that one, and compiles each copy. LLVM
inlines small kernels only, so copies of large ones gain nothing. Here a large kernel is compiled once. A kernel that
calls it names its symbol; the large kernel is loaded first.
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

_LARGE = 16_000  # bytes of LLVM code, above which a kernel is large; with 4,000, compiling takes as long


_MARK = " apart"  # at the end of the name of a large kernel's library in a file


class Kernel(CPUDispatcher):
    """A kernel; if it is large, other kernels call it by its symbol."""

    def compile(self, sig: Any) -> Any:
        """Compile the kernel for arguments of some types, or read it from its file.

        Python collects no garbage meanwhile: this would take an eighth of the time, since numba makes many objects.
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
        """Add what was compiled, or read from a file, for some types of arguments."""
        super().add_overload(compiled)
        library = compiled.library
        library._reload_init.update(compiled.reload_init or ())  # it isn't in what was read from a file
        module, name = self.py_func.__module__, self.py_func.__qualname__
        read = library.name.endswith(_MARK)
        if read or (
            _is_global(self.py_func)
            and not library._disable_inspection  # else it was read without the mark
            and len(library._get_module_for_linking().as_bitcode()) > _LARGE
        ):
            library.__class__ = _Apart
            library.wrapper = compiled.fndesc.llvm_cpython_wrapper_name
            symbol = compiled.fndesc.mangled_name
            library._reload_init = {partial(_load, module, name, compiled.signature.args, symbol)}


class KernelCompiler(Compiler):
    """Names symbols by module and function alone, so that a kernel has the same symbol in every process."""

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
    """Flags to compile a kernel with; equal if functions of numpy that kernels call would be compiled alike.

    numba looks up those functions by the flags of the kernel that calls them. If all flags counted, it would compile
    the functions again for each kernel with other flags.
    """

    def _summary_args(self) -> list[tuple[str, Any]]:
        """Return the flags that are set, with sets in order: numba makes names of symbols of them.

        The order of a set differs between processes, and the names must not.
        """
        return [
            (name, sorted(value.flags) if isinstance(value, FastMathOptions) else value)
            for name, value in super()._summary_args()
        ]

    def __hash__(self) -> int:
        return _HASH

    def __eq__(self, other: object) -> bool:
        return self is other or all(getattr(self, name) == getattr(other, name, None) for name in _HANDED_ON)


_HANDED_ON = "nrt", "fastmath", "error_model", "forceinline"  # flags that a function takes over from its caller
_HASH = hash(Flags())


class _Apart(JITCodeLibrary):
    """The compiled code of a large kernel, which isn't copied into its callers."""

    wrapper: str  # name of the wrapper for Python, if there is one

    def _get_module_for_linking(self) -> Any:
        """Return an empty module in place of a copy: kernels that call this one have declared its symbol."""
        return binding.parse_assembly(str(self._codegen._create_empty_module(self.name)))

    def serialize_using_object_code(self) -> Any:
        """Return what numba writes to a file: the object code, and in place of LLVM's code the name of the wrapper.

        numba reads LLVM's code in a file only for the names of functions that Python calls.
        """
        names = str(self._codegen._create_empty_module(self.name))
        if self._codegen._engine.is_symbol_defined(self.wrapper):
            names += f'define void @"{self.wrapper}"() {{ unreachable }}\n'
        code = binding.parse_assembly(names).as_bitcode()
        return f"{self.name}{_MARK}", "object", (self._get_compiled_object(), code)


def _is_global(function: Callable[..., Any]) -> bool:
    """Whether a function's module has a kernel of this function under the function's name."""
    found = getattr(sys.modules.get(function.__module__), function.__qualname__, None)
    return getattr(found, "py_func", None) is function


class _OtherSymbol(Exception):
    """A kernel in a file calls another one by a symbol that this process doesn't have: a call would crash it."""


def _load(module: str, name: str, types: tuple[Any, ...], symbol: str) -> None:
    """Read a kernel from its file, or compile it, before another kernel that calls it by its symbol is read.

    Raises:
        _OtherSymbol: the kernel has another symbol than its caller names.
    """
    kernel = getattr(import_module(module), name)
    kernel.compile(types)
    if kernel.overloads[tuple(types)].fndesc.mangled_name != symbol:
        raise _OtherSymbol(symbol)
