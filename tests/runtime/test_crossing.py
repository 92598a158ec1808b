"""Values that go from one device to another."""

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from placeto.runtime.crossing import FAILED, Stopped, receiver, sender_to
from placeto.runtime.devices import LocalDevice


def device(name: str, kind: str) -> LocalDevice:
    return LocalDevice(name, kind, torch.device(kind), 1, ThreadPoolExecutor(1))


@pytest.mark.parametrize("apart", [False, True])
def test_cores_hand_over_the_tensor_itself_or_a_copy(apart: bool) -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    send = sender_to(queue, device("cpu:0", "cpu"))
    receive = receiver(queue, device("cpu:0", "cpu"), device("cpu:1", "cpu"), lambda: apart)
    x = torch.randn(3)
    send(x)
    assert (receive().data_ptr() == x.data_ptr()) != apart
    send([x, 2, None])
    found = receive()
    assert torch.equal(found[0], x)
    assert found[1:] == [2, None]


def test_a_device_that_is_no_core_gets_its_own() -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    receive = receiver(queue, device("cpu:0", "cpu"), device("other", "meta"), lambda: False)
    sender_to(queue, device("cpu:0", "cpu"))(torch.randn(3))
    assert receive().device.type == "meta"


def test_what_waits_for_a_device_that_failed_stops() -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    queue.put(FAILED)
    with pytest.raises(Stopped):
        receiver(queue, device("cpu:0", "cpu"), device("cpu:1", "cpu"), lambda: False)()
