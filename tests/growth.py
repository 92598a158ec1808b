"""How the time that something takes grows with its size: a ratio, since machines are fast or slow, and busy or not."""

import gc
import time
from collections.abc import Callable


def assert_in_proportion(prepare: Callable[[int], Callable[[], object]], largest: int) -> None:
    """What is done for a size takes about eight times as long as for an eighth of it, not 64 times.

    Args:
        prepare: makes what is timed, of a size. It runs twice for each size, and the quicker run counts.
        largest: the size, of which an eighth is tried as well.
    """
    took = []
    for size in (largest // 8, largest):
        runs = [prepare(size) for _ in range(2)]
        took.append(min(seconds(run) for run in runs))
    assert took[1] < 25.0 * took[0], f"{took[0]:.3f} s, and {took[1]:.3f} s for eight times as much"


def seconds(run: Callable[[], object]) -> float:
    """The time of this process that it takes, without the garbage collection of what other tests have left."""
    gc.disable()
    try:
        began = time.process_time()
        run()
        return time.process_time() - began
    finally:
        gc.enable()
