"""Labels of ops and of graphs: which there are, and what one that is left out is.

Legend: N ops.
"""

from __future__ import annotations

from placeto.problem.dtypes import DEFAULT

MODES = ("training", "inference")
CHANNELS_LAST = "channels_last"
KERNELS = (
    "", "grouped", "depthwise", CHANNELS_LAST, f"grouped_{CHANNELS_LAST}", f"depthwise_{CHANNELS_LAST}", "dropout"
)  # fmt: skip
"""Which kernel computes an op where its type doesn't tell: a convolution of groups of channels, or of each by itself,
or of tensors with channels as their innermost dimension; a part of a dropout, which GPUs compute in one kernel."""
PASSES = ("", "forward", "backward", "recomputation", "optimizer")
"""Which part of a step an op belongs to, "" where that is unknown."""
BACKWARD_PASSES = ("backward", "recomputation")
"""Passes of what runs once the loss of its micro-batch is known."""
LABELS = {"dtypes": DEFAULT, "kernels": KERNELS[0], "passes": PASSES[0]}
"""Labels of ops that may be left out, and what they are then."""
TENSORS = ("parameter", "buffer")
"""Types of ops that compute nothing and stand for a tensor of the module, by its name."""
NAMES = {"module_tensors": "tensors", "module_inputs": "reads"}
"""Names of what a module has and the graph has no ops for, several for an op; and what op records call them."""
KEYS = {"dtypes": "dtype", "kernels": "kernel", "passes": "pass"}
"""What the labels are called in op records."""
NO_MICRO_BATCH = -1
"""The number of the micro-batch of an op that belongs to all of them."""
