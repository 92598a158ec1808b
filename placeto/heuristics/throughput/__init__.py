"""The objective throughput: placements for a stream of samples with the smallest greatest load of a device.

Input: a problem. Output: a placement with the load of each device, and a lower bound of the greatest load.
"""

from placeto.heuristics.throughput.placer import THROUGHPUT, StreamPlacement, contiguous, free
from placeto.heuristics.throughput.stream import ThroughputError

__all__ = ["THROUGHPUT", "StreamPlacement", "ThroughputError", "contiguous", "free"]
