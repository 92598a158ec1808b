"""Random numbers whose draws can be undone: each is a hash of a counter (splitmix64 of Steele, Lea and Flood, 2014).

The state is a counter (1,) of uint64. Setting it to an earlier value undoes all draws since then.
"""

from __future__ import annotations

import numpy as np

from placeto.plumbing.compiling import compiled


@compiled(inner=True)
def uniform(counter: np.ndarray) -> float:
    """Draw a float, uniform in [0, 1)."""
    counter[0] += np.uint64(0x9E3779B97F4A7C15)
    bits = counter[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return float(bits >> np.uint64(11)) * 2.0**-53


@compiled(inner=True)
def between(counter: np.ndarray, first: int, stop: int) -> int:
    """Draw an integer from `first` to `stop` - 1, each equally likely."""
    return first + int(uniform(counter) * (stop - first))
