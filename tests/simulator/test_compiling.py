"""Whoever wants to know hears once that kernels are compiled."""

from __future__ import annotations

import numba

from placeto import terminal
from placeto.cli.command import compiling_told
from placeto.simulator import compiling


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
