"""Labels of ops and of graphs: their values, and their defaults.

Legend: N ops.
"""

from __future__ import annotations

from placeto.problem.dtypes import DEFAULT

MODES = ("training", "inference")
CHANNELS_LAST = "channels_last"
DROPOUT = "dropout"
ATTENTION = "attention"
KERNELS = (
    "", "grouped", "depthwise", CHANNELS_LAST, f"grouped_{CHANNELS_LAST}", f"depthwise_{CHANNELS_LAST}", DROPOUT,
    ATTENTION,
)  # fmt: skip
"""Which kernel computes an op, if its type doesn't say so. A convolution is "grouped" if it takes groups of channels,
"depthwise" if it takes each channel by itself, and "channels_last" if the channels are the innermost dimension of its
tensors. "dropout" is an op of a dropout, which GPUs compute in one kernel. "attention" is an op of attention with
dropout, which a CPU writes out and GPUs compute in one kernel in each direction."""
PASSES = ("", "forward", "backward", "recomputation", "optimizer")
"""Which part of a step an op belongs to, "" where that is unknown."""
BACKWARD_PASSES = ("backward", "recomputation")
"""Passes of ops that run after the loss of their micro-batch is computed."""
LABELS = {"dtypes": DEFAULT, "kernels": KERNELS[0], "passes": PASSES[0]}
"""Label of ops that may be left out -> its default."""
TENSORS = ("parameter", "buffer")
"""Types of ops that compute nothing: each stands for a tensor of the module, and has its name."""
OPTIMIZER = "optimizer."
"""How the types of ops begin that update a parameter."""
GRADIENT = "gradient"
"""Type of the op that stands for the whole gradient of a parameter, on the parameter's device."""
ADDITION = "aten.add"
"""Type of the ops that add up gradients."""
SHAPE = ".shape"
"""How the names of inputs end of which an op reads no value."""
NO_MICRO_BATCH = -1
"""The number of the micro-batch of an op that belongs to all of them."""
