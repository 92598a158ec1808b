"""Values that go from one device to another."""

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.transport.crossing import FAILED, Stopped, copied, receiver, sender_to


def device(name: str, kind: str) -> LocalDevice:
    return LocalDevice(name, kind, torch.device(kind), 1, ThreadPoolExecutor(1))


@pytest.mark.parametrize("apart", [False, True])
def test_cores_hand_over_the_tensor_itself_or_a_copy(apart: bool) -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    one, other = device("cpu:0", "cpu"), device("cpu:1", "cpu")
    send, receive = sender_to(queue, one, other, [apart] * apart), receiver(queue, one, other)
    x = torch.randn(3)
    send(x)
    assert (receive().data_ptr() == x.data_ptr()) != apart
    send([x, 2, None])
    found = receive()
    assert torch.equal(found[0], x)
    assert found[1:] == [2, None]


def test_a_device_that_is_no_core_gets_its_own() -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    one, other = device("cpu:0", "cpu"), device("other", "meta")
    sender_to(queue, one, other, [True])(torch.randn(3))
    assert receiver(queue, one, other)().device.type == "meta"


@pytest.mark.parametrize("apart", [False, True])
def test_a_core_is_done_with_what_it_has_sent_before_the_other_needs_it(apart: bool) -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    x = torch.randn(3)
    memory = StorageWeakRef(x.untyped_storage())
    sender_to(queue, device("cpu:0", "cpu"), device("cpu:1", "cpu"), [apart] * apart)(x)
    del x
    assert memory.expired() == apart


@pytest.mark.parametrize(
    ("repeated", "count"),
    [
        (torch.randn(4, 1).expand(2, 4, 5), 4),
        (torch.randn(()).expand(3, 3), 1),
        (torch.randn(3, 8).unfold(1, 4, 1)[1:], 16),
        (torch.randn(4, 6).T, 24),
        (torch.randn(4, 6)[:, ::2], 12),
        (torch.randn(0, 3).expand(2, 0, 3), 0),
        (torch.randn(0)[::4], 0),
    ],
)
def test_numbers_that_a_tensor_repeats_are_copied_once(repeated: Tensor, count: int) -> None:
    made = copied(repeated, torch.device("cpu"))
    assert torch.equal(made, repeated)
    assert made.untyped_storage().nbytes() == 4 * count


def test_what_waits_for_a_device_that_failed_stops() -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    queue.put(FAILED)
    with pytest.raises(Stopped):
        receiver(queue, device("cpu:0", "cpu"), device("cpu:1", "cpu"))()
