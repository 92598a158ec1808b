"""From a PyTorch module to a computation graph, as a rule without running or allocating it.

In come an `nn.Module`, example inputs and a loss; out goes the `ComputationGraph` of a training step, or of inference,
with the costs of every op. The map from ops back to what was traced is kept, so that a placed graph can be run.
"""

from placeto.capture.trace import (
    Capture,
    CaptureError,
    capture_inference,
    capture_training,
    trace_inference,
    trace_training,
)

__all__ = ["Capture", "CaptureError", "capture_inference", "capture_training", "trace_inference", "trace_training"]
