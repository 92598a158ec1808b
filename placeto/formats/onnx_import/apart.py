"""Call a function in another process, so that a crash of the function doesn't end this process.

A C++ parser that reads a damaged file can abort its process, fill the memory, or run for ever. The other process starts
at the first call and runs one call after another. If it has ended, the next call starts a new one. Arguments and
results are sent as JSON, so that nothing in a file is run as code.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from threading import Lock, Timer
from typing import IO, Any

_START = 600.0  # seconds that starting may take
_CLUE = 500  # characters of an error's message that are sent


class DiedError(Exception):
    """The process ended before it gave a result. The message says why in the past tense, such as "crashed"."""


class RaisedError(Exception):
    """The function raised an error.

    Attributes:
        kind: name of the error's class.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Apart:
    """A process that runs the functions of one module, one call at a time; calls of several threads wait in turn.

    Args:
        module: the name of the module.
        others: modules that the functions import; loading them counts as starting the process.
    """

    def __init__(self, module: str, *others: str) -> None:
        self._module = module
        self._others = others
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.stop)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def call(self, function: str, *arguments: Any, seconds: float, memory: int, keep: bool = True) -> Any:
        """Run a function of the module in the other process, and return its result.

        Args:
            function: the name of the function.
            arguments: the arguments of the function; they and the result must be values that JSON has.
            seconds: how long the call may take; the start of the process isn't counted.
            memory: bytes that the call may add to the memory of the process; the limit holds on Linux only.
            keep: whether the process is kept for the next call; if not, it ends, which frees its memory.

        Raises:
            RaisedError: the function raised an error.
            DiedError: the process crashed, took too long or needed too much memory.
            OSError: no process can be started.
        """
        with self._lock:
            request = json.dumps([self._module, function, arguments, memory])
            try:
                answer = _ask(self._started(), request, seconds)
                if answer.get("kind") == "MemoryError":
                    raise DiedError(f"took more than {memory >> 20} MB")
            except BaseException:  # Ctrl-C, too: a late answer would be taken for that of the next call
                self.stop()
                raise
            if not keep:
                self.stop()
        if "kind" in answer:
            raise RaisedError(answer["kind"], answer["message"])
        return answer["value"]

    def stop(self) -> None:
        """End the process; the next call starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _forget(self) -> None:
        """In a forked child, drop the parent's process without ending it; the child's next call starts another."""
        self._lock = Lock()  # another thread of the parent may hold the old one
        if self._process is not None:
            self._process.returncode = 0  # counts as ended: only the parent can wait for it
        self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            if not sys.executable:
                raise OSError("no other process can be started: sys.executable is empty")
            program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
            threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                env=os.environ | threads,
            )
            _ask(self._process, json.dumps([self._module, "", self._others, 0]), _START)
        return self._process


def _ask(process: subprocess.Popen[str], request: str, seconds: float) -> dict[str, Any]:
    """Send a request, one line of JSON, to the process, and return its answer.

    Raises:
        DiedError: the process crashed, or didn't answer within `seconds`.
    """
    late = False

    def kill() -> None:
        nonlocal late
        late = True
        process.kill()

    timer = Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        _write(process.stdin, request)
        line = process.stdout.readline() if process.stdout else ""
    finally:
        timer.cancel()
    if line.endswith("\n"):
        return json.loads(line)
    raise DiedError(f"took more than {seconds:.0f} s" if late else "crashed")


def _write(stream: IO[str] | None, line: str) -> None:
    if stream is not None:
        with suppress(BrokenPipeError):
            stream.write(line + "\n")
            stream.flush()


def serve() -> None:
    """Run in the other process: read requests from standard input, one a line, and answer them until the input ends.

    What the functions print goes to standard error, which `Apart` discards.
    """
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; the other one decides
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        module, function, arguments, memory = json.loads(line)
        _write(answers, _answer(module, function, arguments, memory))


def _answer(module: str, function: str, arguments: list[Any], memory: int) -> str:
    try:
        imported = import_module(module)
        if not function:
            return json.dumps({"value": [import_module(name).__name__ for name in arguments]})
        limit_memory(memory)
        return json.dumps({"value": getattr(imported, function)(*arguments)})
    except Exception as problem:  # a damaged file can cause any error
        return json.dumps({"kind": type(problem).__name__, "message": str(problem)[:_CLUE]})
    finally:
        limit_memory(None)


def limit_memory(more: int | None) -> None:
    """Limit the memory of this process to `more` bytes more than it has now; None removes the limit.

    It also turns core dumps off. Only Linux has such a limit: elsewhere nothing is done.
    """
    if sys.platform != "linux":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = hard
    if more is not None:
        with open("/proc/self/statm") as file:
            soft = int(file.read().split()[0]) * resource.getpagesize() + more
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
