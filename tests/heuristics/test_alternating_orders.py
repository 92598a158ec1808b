"""Orders in which devices take turns: the published schedules, what they take and what they hold."""

import numpy as np
import pytest

from placeto.heuristics.pipelines.alternating_orders import Chunks, in_turns, turns


def looped(devices: int, chunks: int, micro_batches: int) -> Chunks:
    """A pipeline whose stages go round the devices."""
    depth, batch = (axis.ravel() for axis in np.indices((devices * chunks, micro_batches)))
    return Chunks(depth % devices, batch, depth)


def programs(chunks: Chunks, split: bool) -> dict[int, str]:
    """What each device runs: forward, backward and, if split, weights, each with its number of the micro-batch."""
    passes = zip("FBW" if split else "FB", turns(chunks, split), strict=False)
    slots = [
        (turn, f"{kind}{batch}", device)
        for kind, of in passes
        for turn, batch, device in zip(of, chunks.micro_batch, chunks.device, strict=True)
    ]
    return {
        device: " ".join(name for _, name, at in sorted(slots) if at == device)
        for device in np.unique(chunks.device).tolist()
    }


# stage 0 on devices 0 and 1, which take every other micro-batch, stage 1 on device 2
REPLICAS = Chunks(np.array([0, 1, 0, 1, 2, 2, 2, 2]), np.array([0, 1, 2, 3] * 2), np.repeat([0, 1], 4))


@pytest.mark.parametrize(
    ("chunks", "split", "expected"),
    [
        (looped(3, 1, 4), False, ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
        (looped(3, 1, 2), False, ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"]),
        (
            looped(2, 2, 4),
            False,
            ["F0 F1 F0 F1 F2 B0 F3 B1 F2 B0 F3 B1 B2 B3 B2 B3", "F0 F1 F0 B0 F1 B1 F2 B0 F3 B1 F2 B2 F3 B3 B2 B3"],
        ),
        (looped(2, 1, 3), True, ["F0 F1 B0 W0 F2 B1 W1 B2 W2", "F0 B0 F1 B1 W0 F2 B2 W1 W2"]),
        (REPLICAS, False, ["F0 F2 B0 B2", "F1 F3 B1 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
    ],
    ids=["1F1B", "fewer micro-batches than devices", "interleaved", "gradients of weights put off", "replicas"],
)
def test_programs_of_devices(chunks: Chunks, split: bool, expected: list[str]) -> None:
    assert list(programs(chunks, split).values()) == expected


def test_lists_that_wait_for_each_other_and_ops_without_a_turn() -> None:
    # 0 -> 1, 2 -> 3; device 0 has 3 before 0, device 1 has 1 before 2; op 4 reads 2
    ptr, child = np.array([0, 1, 1, 3, 3, 3]), np.array([1, 3, 4])
    turn = np.array([1.0, 0.0, 1.0, 0.0, np.nan])
    order = in_turns(np.arange(5), ptr, child, np.array([0, 1, 1, 0, 1]), turn, 2)
    assert order.tolist() == [0, 1, 2, 4, 3]


@pytest.mark.parametrize("split", [False, True])
def test_no_turn_comes_before_what_it_needs(split: bool) -> None:
    forward, backward, deferred = turns(looped(4, 3, 8), split)
    assert (forward < backward).all()
    assert (backward <= deferred).all()
