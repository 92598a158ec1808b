"""From a PyTorch module to a computation graph, as a rule without running or allocating it.

Input: an `nn.Module`, example inputs and a loss. Output: the `ComputationGraph` of a training step, or of an inference,
with the costs of every op. A capture also keeps which traced call each op comes from, so that a placed graph can be
run.
"""

from placeto.capture.trace import Capture, capture_inference, capture_training, trace_inference, trace_training
from placeto.errors import CaptureError

__all__ = ["Capture", "CaptureError", "capture_inference", "capture_training", "trace_inference", "trace_training"]
