"""Whoever wants to know hears once that kernels are compiled."""

from __future__ import annotations

import gc
import importlib
import pkgutil

import numba
from numba.core.dispatcher import Dispatcher

import placeto
from placeto import compiling, terminal
from placeto.cli.command import compiling_told


def compile_something() -> None:
    numba.njit(lambda x: x + 1)(1)


def test_the_first_compilation_is_told_once(capsys) -> None:
    assert compiling.compiled is not None  # its import is what listens
    with compiling_told():
        assert capsys.readouterr().err == ""
        compile_something()
        compile_something()
        assert capsys.readouterr().err.count("note: compiling, once") == 1
    compile_something()
    assert capsys.readouterr().err == ""


def test_nothing_is_told_where_nothing_is_compiled(capsys) -> None:
    with compiling_told():
        pass
    assert terminal.on_compiling == []
    assert capsys.readouterr().err == ""


def test_no_function_is_compiled_in_two_ways() -> None:
    """Numba keeps what is compiled by the function's name: a second way would be read as the first."""
    for module in pkgutil.walk_packages(placeto.__path__, "placeto."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    kernels = [found for found in gc.get_objects() if issubclass(type(found), Dispatcher)]
    codes = [kernel.py_func.__code__ for kernel in kernels if kernel.py_func.__module__.startswith("placeto.")]
    assert len(codes) > 50
    assert len(set(codes)) == len(codes)
