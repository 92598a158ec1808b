"""Stages with different numbers of replicas, by dynamic programming over layers and devices.

After PipeDream (Narayanan et al., SOSP 2019), DAPPLE (Fan et al., PPoPP 2021) and Tarnawski et al., NeurIPS 2020: the
slowest stage or border is to be as fast as possible. The time of a stage is the work of its layers divided by the speed
of its devices, plus the time in which its replicas sum their gradients in a ring. The time of a border is that of
sending over the link what crosses it. Each stage takes the next devices in the order given.

Legend: L layers, D devices, P stages.
"""

from __future__ import annotations

import numpy as np

MOST_DEVICES, MOST_STAGES = 16, 8
"""Upper limits. With more devices no stages are sought, since the tables grow with the square of the devices."""


def stage_programs(
    work_us: np.ndarray,
    parameters: np.ndarray,
    crossing: np.ndarray,
    speed: np.ndarray,
    bandwidth: np.ndarray,
    replicas: int,
) -> list[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]]:
    """For each number of stages from 2 to `MOST_STAGES`, find the stages whose slowest stage or border is fastest.

    Args:
        work_us: (L,) microseconds of each layer on a device of speed 1, forward and backward, of the whole batch.
        parameters: (L,) bytes of each layer's gradients.
        crossing: (L-1,) bytes that cross the border before each layer but the first, both ways, of the whole batch.
        speed: (D,) of the devices, in an order in which the devices of a host are neighbours.
        bandwidth: (D, D) of the links, bytes a microsecond.
        replicas: upper limit of the devices of a stage: the number of micro-batches.

    Returns:
        For each number of stages that is possible: the numbers of each stage's devices, and the first layer of each
        stage but the first. Nothing with more than `MOST_DEVICES` devices.
    """
    num_layers, num_devices = len(work_us), len(speed)
    if num_devices > MOST_DEVICES:
        return []
    work, bytes_of = np.append(0.0, np.cumsum(work_us)), np.append(0.0, np.cumsum(parameters))
    worked, summed = work[None, :] - work[:, None], bytes_of[None, :] - bytes_of[:, None]  # [j, l] = layers j to l - 1
    impossible = np.tril(np.ones((num_layers + 1, num_layers + 1), bool))

    def stage_us(first: int, last: int) -> np.ndarray:
        """(L+1, L+1) us, entry [j, l] is the time of a stage of layers j to l - 1 on devices first to last - 1."""
        count = last - first
        time = worked / speed[first:last].sum()
        if count > 1:
            links = bandwidth[first:last, first:last][~np.eye(count, dtype=bool)]
            time = time + 2.0 * (count - 1) / count * summed / links.min()
        return np.where(impossible, np.inf, time)

    least = np.full((num_devices + 1, num_layers + 1), np.inf)  # [d, l] = first l layers, d devices
    for d in range(1, min(replicas, num_devices) + 1):
        least[d] = stage_us(0, d)[0]
    chosen: list[np.ndarray] = []
    programs = []
    for stages in range(2, min(num_devices, num_layers, MOST_STAGES) + 1):
        least_before, least = least, np.full_like(least, np.inf)
        choice = np.zeros((num_devices + 1, num_layers + 1, 2), np.int64)  # devices and layers before the last stage
        for d in range(stages, num_devices + 1):
            for first in range(max(stages - 1, d - replicas), d):
                sent = np.append(np.inf, np.append(crossing, np.inf)) / bandwidth[first - 1, first]
                slowest = np.maximum(np.maximum(least_before[first], sent)[:, None], stage_us(first, d))
                layers_before = slowest.argmin(axis=0)
                time = np.take_along_axis(slowest, layers_before[None], 0)[0]
                better = time < least[d]
                least[d][better] = time[better]
                choice[d][better] = np.stack([np.full(len(layers_before), first), layers_before], 1)[better]
        chosen.append(choice)
        if np.isfinite(least[num_devices, num_layers]):
            programs.append(_traced(chosen, num_devices, num_layers))
    return programs


def _traced(chosen: list[np.ndarray], d: int, layer: int) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    devices, borders = [], []
    for choice in reversed(chosen):
        first, layers_before = choice[d, layer].tolist()
        devices.append(tuple(range(first, d)))
        borders.append(layers_before)
        d, layer = first, layers_before
    return (tuple(range(d)), *reversed(devices)), tuple(reversed(borders))
