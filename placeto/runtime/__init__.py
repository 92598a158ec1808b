"""What runs on real devices: programs made from captured models, and what is measured with them.

A `Program` is a captured step as straight-line Python; a `LocalDevice` is a CPU core with a thread of its own, or a
GPU. `profile` measures the ops of steps and the transfers between devices, and gives a cost model and a cluster.
"""

from typing import TYPE_CHECKING

from placeto.lazily import lazily

if TYPE_CHECKING:
    from placeto.runtime.devices import DeviceError, LocalDevice, open_devices
    from placeto.runtime.profiling import Profile, profile
    from placeto.runtime.program import Program
    from placeto.runtime.steps import RealStep, StepError, real_inference, real_training

_NAMES = {
    "devices": ("DeviceError", "LocalDevice", "open_devices"),
    "profiling": ("Profile", "profile"),
    "program": ("Program",),
    "steps": ("RealStep", "StepError", "real_inference", "real_training"),
}

__all__ = [
    "DeviceError",
    "LocalDevice",
    "Profile",
    "Program",
    "RealStep",
    "StepError",
    "open_devices",
    "profile",
    "real_inference",
    "real_training",
]

__getattr__, __dir__ = lazily(globals(), _NAMES)
