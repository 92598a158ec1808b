"""Devices that tests of several files run on."""

from collections.abc import Iterator

import pytest

from placeto.runtime.local_devices import LocalDevice, open_devices


@pytest.fixture(scope="module")
def devices() -> Iterator[list[LocalDevice]]:
    opened = open_devices(["cpu:0", "cpu:1"])
    yield opened
    for device in opened:
        device.thread.shutdown()
