"""Sends values from one device to another, through a queue between the threads of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from placeto.runtime.local_devices import LocalDevice

FAILED = object()
"""What a queue gets in place of a value if the sender has failed."""


class Stopped(Exception):
    """The device that should have sent a value has failed."""


def sender_to(
    queue: SimpleQueue[Any], device: LocalDevice, taker: LocalDevice, meters: Sequence[Any]
) -> Callable[[Any], None]:
    """Return a function that puts a value of a device into a queue; a GPU's value with the event that completes it.

    Args:
        queue: the queue that the value goes through.
        device: the device that makes the value.
        taker: the device that needs the value.
        meters: the meters of the step that runs. With some, CPU cores share no memory. The sender then makes the copy,
            as only its own calls decide how long it keeps a value, however late the other core needs it.
    """
    if not device.is_cpu:

        def send(value: Any) -> None:
            event = torch.cuda.Event()
            event.record()
            queue.put((value, event))

        return send
    if not taker.is_cpu:
        return queue.put

    def share(value: Any) -> None:
        if meters:
            with _disable_current_modes():  # the copy counts where it is read
                value = _each(lambda part: copied(part, part.device), value)
        queue.put(value)

    return share


def receiver(queue: SimpleQueue[Any], sender: LocalDevice, device: LocalDevice) -> Callable[[], Any]:
    """Return a function that waits for a value, and returns it on the device that needs it.

    The function raises `Stopped` if the sender has failed.

    Args:
        queue: the queue that the value comes through.
        sender: the device that makes the value.
        device: the device that needs the value.
    """
    get, target = queue.get, device.torch_device
    stream = None  # for copies from a GPU, which don't wait there for work that came after the value
    if device.is_cpu and not sender.is_cpu:
        stream = torch.cuda.Stream(sender.torch_device)

    def bring(part: Tensor) -> Tensor:
        return part if part.device == target else copied(part, target)

    def receive() -> Any:
        value = get()
        if value is FAILED:
            raise Stopped
        if type(value) is tuple and len(value) == 2 and isinstance(value[1], torch.cuda.Event):
            value, event = value
            event.synchronize() if device.is_cpu else torch.cuda.current_stream().wait_event(event)
        with torch.cuda.stream(stream):  # without a stream nothing changes
            return _each(bring, value)

    return receive


def copied(part: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device. If it shows numbers several times, as by `expand`, they are copied once.

    >>> copied(torch.ones(2, 1).expand(2, 1000), torch.device("cpu")).untyped_storage().nbytes()
    8
    """
    last = sum((size - 1) * step for size, step in zip(part.shape, part.stride(), strict=True))
    how: dict[str, Any] = {"non_blocking": device.type != "cpu", "copy": True}
    if part.numel() == 0 or last + 1 >= part.numel():
        return part.to(device, **how)
    memory = part.as_strided((last + 1,), (1,), part.storage_offset()).to(device, **how)
    return memory.as_strided(part.shape, part.stride())


def _each(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a value with a function applied to it, or to each of its parts, as far as these are tensors."""
    if isinstance(value, Tensor):
        return function(value)
    return type(value)(function(part) if isinstance(part, Tensor) else part for part in value)
