"""The kernels do what their descriptions say, step by step, on what is drawn at random."""

import numpy as np
import pytest

from placeto.problem.grouping.grouping_kernels import Joining, Origins, Reads, find_homes, join_light

PATHS = [[0], [1], [1, 2], [1, 3], [1, 2, 4], [5]]  # names of six modules


def drawn(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, Origins, Joining]:
    """Times of ops, pairs that exchange tensors, how long these travel, where ops come from, when they join."""
    size = int(random.integers(2, 60))
    time = random.choice([0.0, 1.0, 1.0, 5.0, 20.0, 100.0], size) + random.choice([0.0, 0.5], size)
    ends = np.sort(random.integers(0, size, (2, 3 * size)), 0)
    pairs = np.unique(ends[:, ends[0] < ends[1]], axis=1)
    travel = random.choice([1.0, 10.0, 10.0, 1000.0], pairs.shape[1])
    part = np.where(random.random(size) < 0.3, random.integers(0, 3, size), -1)
    ptr = np.cumsum([0, *map(len, PATHS)])
    module, call = random.integers(0, len(PATHS), size), random.integers(0, 3, size)
    origins = Origins(module, call, part, ptr, np.concatenate(PATHS))
    return time, pairs, travel, origins, Joining(0.2, 0.1 * time.sum(), 0.1, int(random.integers(1, 10)))


def affinity(origins: Origins, one: int, other: int) -> float:
    a, b = origins.module[one], origins.module[other]
    if a == b:
        return 2.0 if origins.call[one] == origins.call[other] else 1.0
    same = [x == y for x, y in zip(PATHS[a], PATHS[b], strict=False)]
    return (same.index(False) if False in same else len(same)) / (1.0 + max(len(PATHS[a]), len(PATHS[b])))


def joined(
    time: np.ndarray, pairs: np.ndarray, travel: np.ndarray, origins: Origins, joining: Joining
) -> list[set[int]]:
    """The units in the end: each looked at anew, whole, after every join."""
    units = {op: {op} for op in range(len(time))}  # by their first op
    work = dict(enumerate(time.tolist()))
    waiting = set(units)
    while waiting and len(units) > joining.fewest:
        unit = min(waiting, key=lambda one: (work[one], one))
        waiting.discard(unit)
        of = {op: first for first, members in units.items() for op in members}
        near: dict[int, float] = {}
        for (a, b), us in zip(pairs.T.tolist(), travel.tolist(), strict=True):
            for mine, other in ((of[a], of[b]), (of[b], of[a])):
                if mine == unit != other:
                    near[other] = max(near.get(other, 0.0), us)
        heaviest = {first: min(members, key=lambda op: (-time[op], op)) for first, members in units.items()}
        options = [
            (affinity(origins, heaviest[unit], heaviest[other]), us, -other)
            for other, us in near.items()
            if (work[other] + work[unit] <= joining.largest or work[unit] <= joining.trifle * work[other])
            and origins.part[heaviest[unit]] == origins.part[heaviest[other]]
        ]
        if options and work[unit] < joining.light * max(near.values()):
            other = -max(options)[2]
            kept, gone = min(unit, other), max(unit, other)
            units[kept] |= units.pop(gone)
            work[kept] += work.pop(gone)
            waiting = waiting - {gone} | {kept}
    return sorted(units.values(), key=min)


@pytest.mark.parametrize("seed", range(40))
def test_light_ops_join_as_a_plain_search_says(seed: int) -> None:
    time, pairs, travel, origins, joining = drawn(np.random.default_rng(seed))
    leader, work, heaviest = np.arange(len(time)), time.copy(), np.arange(len(time))
    count = join_light(leader, work, heaviest, time, pairs, travel, origins, joining)
    units: dict[int, set[int]] = {}
    for op in range(len(time)):
        first = op
        while leader[first] != first:
            first = int(leader[first])
        units.setdefault(first, set()).add(op)
    assert sorted(units.values(), key=min) == joined(time, pairs, travel, origins, joining)
    assert len(units) == len(time) - count


@pytest.mark.parametrize("seed", range(40))
def test_backward_ops_find_their_forward_ops_as_a_plain_search_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = 30
    read = [sorted(random.choice(8, random.integers(0, 4), replace=False).tolist()) for _ in range(size)]  # tensors
    kind, backward = random.integers(0, 3, size), np.arange(size) >= 10
    alike = random.random((3, 3)) < 0.5
    users = [[op for op in range(10) if tensor in read[op]] for tensor in range(8)]  # forward ops
    edges = [(op, tensor) for op in range(size) for tensor in read[op]]
    tensor = np.array([tensor for _, tensor in edges])
    first = np.cumsum([0, *map(len, users)])
    by_tensor = np.argsort(tensor, kind="stable")
    reads = Reads(
        ptr=np.cumsum([0, *map(len, read)]),
        tensor=tensor,
        backward=backward,
        forward=np.array([op for of in users for op in of]),
        first=first[tensor],
        last=first[tensor + 1],
        kind=kind,
        alike=alike,
        reader_ptr=np.searchsorted(tensor[by_tensor], np.arange(9)),
        reader=np.array([op for op, _ in edges])[by_tensor],
    )
    best: dict[int, list[int]] = {}  # backward op -> forward ops that share most with it
    for op in range(10, size):
        shared = [sum(op_ in users[tensor] for tensor in read[op]) for op_ in range(10)]
        score = [count + 0.5 * alike[kind[op_], kind[op]] if count else 0.0 for op_, count in enumerate(shared)]
        best[op] = [op_ for op_ in range(10) if score[op_] == max(score) > 0.0]
    expected = [-1] * 10
    for op in range(10, size):
        same = [other for tensor in read[op] for other in range(10, size) if tensor in read[other]]
        told = [best[other][0] for other in same if len(best[other]) == 1 and best[other][0] in best[op]]
        expected.append(best[op][0] if len(best[op]) == 1 else told[0] if told else -1)
    assert find_homes(reads).tolist() == expected
