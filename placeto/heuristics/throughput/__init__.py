"""The objective throughput: placements for a stream of samples whose greatest load of a device is smallest.

Input: a problem. Output: a placement with the load of each device, and a lower bound of the greatest load.
"""

from placeto.errors import PlacerError
from placeto.heuristics.throughput.throughput_placer import THROUGHPUT, StreamPlacement, contiguous, free

__all__ = ["THROUGHPUT", "PlacerError", "StreamPlacement", "contiguous", "free"]
