"""Call a function in another process, so that a crash of the function doesn't end this process.

A C++ parser that reads a damaged file can abort its process, fill the memory, or run for ever. Arguments and results
are sent as JSON, so that nothing in a file is run as code.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

_START = 600.0  # seconds that starting may take
_CLUE = 500  # characters of an error's message that are sent


class DiedError(Exception):
    """The process ended before it gave a result. The message says why in the past tense, such as "crashed"."""


class RaisedError(Exception):
    """The function raised an error, which had this message."""


def call_apart(
    module: str, function: str, *arguments: Any, seconds: float, memory: int, others: Sequence[str] = ()
) -> Any:
    """Run a function in a process of its own, and return its result.

    Args:
        module: the name of the module that has the function.
        function: the name of the function.
        arguments: the arguments of the function; they and the result must be values that JSON has.
        seconds: how long the call may take; the start of the process isn't counted.
        memory: bytes that the call may add to the memory of the process; the limit holds on Linux only.
        others: modules that the function imports; loading them counts as starting the process.

    Raises:
        RaisedError: the function raised an error.
        DiedError: the process crashed, took too long or needed too much memory.
        OSError: no process can be started.
    """
    if not sys.executable:
        raise OSError("no other process can be started: sys.executable is empty")
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import answer; answer()"
    late = DiedError(f"took more than {seconds:.0f} s")
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps([module, function, arguments, seconds, memory, others]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            timeout=_START + seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise late from None
    if not done.stdout.endswith("\n"):
        raise late if -done.returncode == getattr(signal, "SIGALRM", None) else DiedError("crashed")
    kind, value = json.loads(done.stdout)
    if kind == "MemoryError":
        raise DiedError(f"took more than {memory >> 20} MB")
    if kind:
        raise RaisedError(value)
    return value


def answer() -> None:
    """In the other process, read a request from standard input and answer it; what the function prints isn't read."""
    module, function, arguments, seconds, memory, others = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        called = getattr(import_module(module), function)
        for other in others:
            with suppress(ImportError):  # the function says what is missing
                import_module(other)
        with limits(seconds, memory):
            text = json.dumps(["", called(*arguments)])
    except Exception as problem:  # a damaged file can cause any error
        text = json.dumps([type(problem).__name__, str(problem)[:_CLUE]])
    answers.write(f"{text}\n")
    answers.close()


@contextmanager
def limits(seconds: float, memory: int) -> Iterator[None]:
    """A context that ends this process after some seconds, and limits its memory to so many bytes more than it has now.

    Only Linux has such a limit of memory, and Windows has neither. Core dumps are turned off.
    """
    if sys.platform == "win32":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
