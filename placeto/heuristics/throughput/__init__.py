"""The objective throughput: placements for a stream of samples whose greatest load of a device is smallest.

Input: a problem. Output: a placement with the load of each device, and a lower bound of the greatest load.
"""

from placeto.heuristics.throughput.placer import THROUGHPUT, StreamPlacement, contiguous, free
from placeto.heuristics.throughput.stream import ThroughputError

__all__ = ["THROUGHPUT", "StreamPlacement", "ThroughputError", "contiguous", "free"]
