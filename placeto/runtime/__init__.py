"""What runs on real devices: programs made from captured models, and what is measured with them.

A `Program` is a captured step as straight-line Python; a `LocalDevice` is a CPU core with a thread of its own, or a
GPU. `profile` measures the ops of steps and the transfers between devices, and gives a cost model and a cluster.
"""

from typing import TYPE_CHECKING

from placeto.plumbing.lazily import lazily

if TYPE_CHECKING:
    from placeto.errors import RunError
    from placeto.runtime.local_devices import LocalDevice, open_devices
    from placeto.runtime.measuring.profiling import Profile, profile
    from placeto.runtime.program import Program
    from placeto.runtime.real_steps import RealStep, real_inference, real_training

_NAMES = {
    "local_devices": ("DeviceError", "LocalDevice", "RunError", "open_devices"),
    "measuring.profiling": ("Profile", "profile"),
    "program": ("Program",),
    "real_steps": ("RealStep", "StepError", "real_inference", "real_training"),
}

__all__ = [
    "LocalDevice",
    "Profile",
    "Program",
    "RealStep",
    "RunError",
    "open_devices",
    "profile",
    "real_inference",
    "real_training",
]

__getattr__, __dir__ = lazily(globals(), _NAMES)
