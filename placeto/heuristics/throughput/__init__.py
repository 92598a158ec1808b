"""The objective throughput: placements for a stream of samples, of which the greatest load of a device is least.

In comes a problem; out goes a placement with the load of each device, and a bound of the greatest.
"""

from placeto.heuristics.throughput.placer import THROUGHPUT, StreamPlacement, contiguous, free
from placeto.heuristics.throughput.stream import ThroughputError

__all__ = ["THROUGHPUT", "StreamPlacement", "ThroughputError", "contiguous", "free"]
