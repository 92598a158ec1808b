"""Functions in another process: what they return, raise, and what becomes of their process."""

import os
import sys
import time

import pytest

from placeto.formats.onnx_import.apart import DiedError, RaisedError, call_apart

MEMORY = 256 * 2**20


def call(function: str, *arguments: object, seconds: float = 60.0) -> object:
    return call_apart(__name__, function, *arguments, seconds=seconds, memory=MEMORY)


def whose(number: float) -> list[float]:
    print("this goes nowhere")
    return [number, os.getpid()]


def fail() -> None:
    raise LookupError("no\nsuch thing")


def abort() -> None:
    os.abort()


def hang() -> None:
    time.sleep(600)


def fill(size: int) -> int:
    return len(bytearray(size))


def judge(name: str, path: str, seconds: float, memory: int) -> tuple[str, int]:
    """What stands for reading a file, for the tests of `experiments.fuzz`."""
    if name == "abort":
        os.abort()
    return "accepted" if name == "valid" else "TypeError: of all things", 3


def test_a_process_answers() -> None:
    number, process = call("whose", 0.5)
    assert number == 0.5
    assert process != os.getpid()
    with pytest.raises(RaisedError, match="no\nsuch thing"):
        call("fail")
    with pytest.raises(RaisedError, match="nothing"):
        call("nothing")


def test_a_process_may_die() -> None:
    with pytest.raises(DiedError, match="crashed"):
        call("abort")
    with pytest.raises(DiedError, match="took more than 1 s"):
        call("hang", seconds=1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps to the limit")
def test_memory_is_limited() -> None:
    with pytest.raises(DiedError, match="took more than 256 MB"):
        call("fill", 2 * MEMORY)
    assert call("fill", MEMORY // 2) == MEMORY // 2
