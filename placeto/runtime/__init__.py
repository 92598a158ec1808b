"""What runs on real devices: programs made from captured models, and what is measured with them.

A `Program` is a captured step as straight-line Python; a `LocalDevice` is a CPU core with a thread of its own, or a
GPU. `profile` measures the ops of steps and the transfers between devices, and gives a cost model and a cluster.
"""
