"""Functions in another process: what they return, raise, and what becomes of their process."""

import os
import sys
import threading
import time
from typing import IO

import pytest

from placeto.formats.onnx_import import apart
from placeto.formats.onnx_import.apart import Apart, DiedError, RaisedError

HERE = Apart(__name__)
MEMORY = 256 * 2**20


def call(function: str, *arguments: object, seconds: float = 60.0) -> object:
    return HERE.call(function, *arguments, seconds=seconds, memory=MEMORY)


def whose(*_: object) -> int:
    return os.getpid()


def twice(number: float) -> list[float]:
    print("this goes nowhere")
    return [number, number]


def fail() -> None:
    raise LookupError("no\nsuch thing")


def abort() -> None:
    os.abort()


def hang() -> None:
    time.sleep(600)


def fill(size: int) -> int:
    return len(bytearray(size))


def judge(name: str, path: str) -> list[object]:
    """What stands for reading a file, for the tests of `experiments.fuzz`."""
    if name == "abort":
        os.abort()
    return ["accepted" if name == "valid" else "TypeError: of all things", 1, 2]


def test_a_process_answers_again_and_again() -> None:
    assert call("twice", 0.5) == [0.5, 0.5]
    first = call("whose")
    assert first != os.getpid()
    with pytest.raises(RaisedError, match="no\nsuch thing") as raised:
        call("fail")
    assert raised.value.kind == "LookupError"
    with pytest.raises(RaisedError, match="nothing"):
        call("nothing")
    assert call("whose") == first


def test_a_process_may_be_ended_after_its_answer() -> None:
    first = call("whose")
    assert HERE.call("whose", seconds=60.0, memory=MEMORY, keep=False) == first
    assert call("whose") != first


def test_a_process_that_dies_is_started_again() -> None:
    first = call("whose")
    with pytest.raises(DiedError, match="crashed"):
        call("abort")
    with pytest.raises(DiedError, match="took more than 1 s"):
        call("hang", seconds=1.0)
    assert call("whose") not in (first, os.getpid())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps to the limit")
def test_memory_is_limited() -> None:
    with pytest.raises(DiedError, match="took more than 256 MB"):
        call("fill", 2 * MEMORY)
    assert call("fill", MEMORY // 2) == MEMORY // 2


def test_threads_get_their_own_answers() -> None:
    answers: dict[int, object] = {}
    threads = [threading.Thread(target=lambda i=i: answers.update({i: call("twice", i)})) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: [i, i] for i in range(8)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_child_has_a_process_of_its_own() -> None:
    first = call("whose")
    child = os.fork()
    if not child:
        os._exit(int(call("whose") == first))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert call("whose") == first


def test_an_interrupt_leaves_no_answer_for_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    write = apart._write

    def interrupted(stream: IO[str], line: str) -> None:
        write(stream, line)
        raise KeyboardInterrupt

    assert call("twice", 1) == [1, 1]
    monkeypatch.setattr(apart, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call("twice", 2)
    monkeypatch.undo()
    assert call("twice", 3) == [3, 3]
