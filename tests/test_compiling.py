"""Whoever wants to know hears once that kernels are compiled."""

import gc
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import numba
import pytest
from numba.core.dispatcher import Dispatcher

import placeto
from placeto.cli.command import log_noted
from placeto.plumbing.compiling import COMPILING, LISTENER


def compile_something() -> None:
    numba.njit(lambda x: x + 1)(1)


def test_the_first_compilation_is_told_once(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LISTENER, "told", False)
    with log_noted():
        assert capsys.readouterr().err == ""
        compile_something()
        compile_something()
        assert capsys.readouterr().err.count("note: compiling parts of the simulator, each") == 1
    monkeypatch.setattr(LISTENER, "told", False)
    compile_something()
    assert capsys.readouterr().err == "", "who uses the package hears it by the log"
    assert caplog.messages == [COMPILING] * 2


@pytest.fixture(scope="module")
def codes() -> Iterator[list[CodeType]]:
    """Of all kernels of the package."""
    gc.unfreeze()  # else what was imported before isn't found
    for module in pkgutil.walk_packages(placeto.__path__, "placeto."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    kernels = [found for found in gc.get_objects() if issubclass(type(found), Dispatcher)]
    yield [kernel.py_func.__code__ for kernel in kernels if kernel.py_func.__module__.startswith("placeto.")]
    gc.freeze()


def test_no_function_is_compiled_in_two_ways(codes: list[CodeType]) -> None:
    """Numba keeps what is compiled by the function's name: a second way would be read as the first."""
    assert len(codes) > 50
    assert len(set(codes)) == len(codes)


def _names(code: CodeType) -> set[str]:
    """All that a function mentions, and what is defined within it."""
    within = [_names(const) for const in code.co_consts if isinstance(const, CodeType)]
    return set(code.co_names).union(*within)


def test_python_calls_no_kernel_of_kernels(codes: list[CodeType]) -> None:
    """A call would crash the process. What is no kernel mentions none, whether by its own name or as a module's."""
    functions = [found for found in gc.get_objects() if type(found) is FunctionType]
    functions = [found for found in functions if (found.__module__ or "").startswith("placeto.")]
    functions = [found for found in functions if found.__code__ not in codes]
    assert len(functions) > 500
    wrong = set()
    for function in functions:
        names = _names(function.__code__)
        read = [function.__globals__.get(name) for name in names]
        modules = [value for value in read if isinstance(value, ModuleType) and value.__name__.startswith("placeto.")]
        read += [vars(module).get(name) for module in modules for name in names]
        if any(getattr(value, "targetoptions", {}).get("no_cpython_wrapper") for value in read):
            wrong.add(f"{function.__module__}.{function.__qualname__}")
    assert wrong == set()


def test_kernels_outside_the_package_are_not_kept() -> None:
    """Nobody would forget them where kernels of placeto, which they take in, change: answers would be of before."""
    root = Path(placeto.__file__).parents[1]
    files = [path for name in ("experiments", "graphs", "examples") for path in (root / name).rglob("*.py")]
    assert [path.name for path in files if "njit" in path.read_text() or "cache=True" in path.read_text()] == []
