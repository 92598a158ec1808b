"""Sends values from one device to another, through a queue between the threads of both."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from placeto.runtime.devices import LocalDevice

FAILED = object()
"""What a queue gets in place of a value if the sender has failed."""


class Stopped(Exception):
    """The device that should have sent a value has failed."""


def sender_to(queue: SimpleQueue[Any], device: LocalDevice) -> Callable[[Any], None]:
    """Return a function that puts a value of a device into a queue; a GPU's value with the event that completes it."""
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
    """Return a function that waits for a value, and returns it on the device that needs it.

    The function raises `Stopped` if the sender has failed.

    Args:
        queue: the queue that the value comes through.
        sender: the device that makes the value.
        device: the device that needs the value.
        apart: says at each value whether CPU cores are to share no memory.
    """
    get, target = queue.get, device.torch_device
    stream = None  # for copies from a GPU, which don't wait there for work that came after the value
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
        with torch.cuda.stream(stream):  # without a stream nothing changes
            return bring(value) if isinstance(value, Tensor) else type(value)(map(bring, value))

    return receive
