"""Values that go from one device to another: through a queue, from the thread of one to that of the other."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from placeto.runtime.devices import LocalDevice

FAILED = object()
"""In place of a value: its sender has failed."""


class Stopped(Exception):
    """Another device has failed."""


def sender_to(queue: SimpleQueue[Any], device: LocalDevice) -> Callable[[Any], None]:
    """What puts a value of a device into a queue; of a GPU with the event after which it is there."""
    if device.is_cpu:
        return queue.put

    def send(value: Any) -> None:
        event = torch.cuda.Event()
        event.record()
        queue.put((value, event))

    return send


def receiver(
    queue: SimpleQueue[Any], sender: LocalDevice, device: LocalDevice, apart: Callable[[], bool]
) -> Callable[[], Any]:
    """What waits for a value, and brings it to the device.

    Args:
        queue: the queue that the value comes through.
        sender: where it is made.
        device: where it is needed.
        apart: whether CPU cores are to share no memory.

    Raises:
        Stopped: when called, if the sender has failed.
    """
    get, target = queue.get, device.torch_device
    stream = None  # for copies, which then don't wait for what the sender was given to do since
    if device.is_cpu and not sender.is_cpu:
        stream = torch.cuda.Stream(sender.torch_device)

    def bring(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        if part.device == target:
            return part.clone() if device.is_cpu and apart() else part
        return part.to(target, non_blocking=not device.is_cpu)

    def receive() -> Any:
        value = get()
        if value is FAILED:
            raise Stopped
        if type(value) is tuple and len(value) == 2 and isinstance(value[1], torch.cuda.Event):
            value, event = value
            event.synchronize() if device.is_cpu else torch.cuda.current_stream().wait_event(event)
        with torch.cuda.stream(stream):  # nothing changes where there is none
            return bring(value) if isinstance(value, Tensor) else type(value)(map(bring, value))

    return receive
