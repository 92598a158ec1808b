"""Which ops of a step wait for others though they need nothing of theirs."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def hold_back(
    records: Sequence[dict[str, Any]],
    backward: Sequence[bool],
    part: Sequence[int],
    random: Collection[int],
    losses: Mapping[int, int],
) -> None:
    """Keep ops from running before their time, merely because they need nothing that takes long.

    What depends on no earlier op of the backward pass, such as an activation that is computed again, could run in the
    forward pass. It waits, for an output of no bytes, for the gradient that it will be combined with; where that is
    constant, for the loss. Random numbers of the forward pass wait in the same way for the tensor they are meant for.
    Each micro-batch waits for its own gradients and its own loss alone.

    Args:
        records: of the ops, in the order of the trace; what waits gets an input more, and what it waits for an output.
        backward: which ops are of the backward pass.
        part: number of each op's micro-batch; ops that belong to all have one as well.
        random: ops that draw random numbers.
        losses: the op that makes the loss of each micro-batch.
    """
    index = {record["name"]: op for op, record in enumerate(records)}
    producers = [{index[source] for source, _ in record["inputs"]} for record in records]
    computed = [record["type"] != "parameter" for record in records]
    consumers: list[list[int]] = [[] for _ in producers]
    for op, sources in enumerate(producers):
        for source in sources:
            consumers[source].append(op)
    after_loss = {number: _descendants(consumers, loss) for number, loss in losses.items()}
    signals: dict[int, int] = {}  # op -> its output of no bytes
    for op, sources in enumerate(producers):
        early = op in random and not sources
        if not (backward[op] or early) or any(backward[source] for source in sources):
            continue
        awaited = _partner(backward if backward[op] else computed, producers, consumers, part, op)
        if backward[op] and awaited is None and part[op] in losses and op not in after_loss[part[op]]:
            awaited = losses[part[op]]
        if awaited is not None:
            made_by = records[awaited]
            if awaited not in signals:
                signals[awaited] = len(made_by["outputs"])
                made_by["outputs"].append(0)
            records[op]["inputs"].append((made_by["name"], signals[awaited]))


def _partner(
    eligible: Sequence[bool],
    producers: Sequence[set[int]],
    consumers: Sequence[list[int]],
    part: Sequence[int],
    op: int,
) -> int | None:
    """The last of the eligible ops before `op` among those with which what comes of it is first combined.

    What sums over micro-batches doesn't count: nobody waits for it within one.
    """
    pending, seen = list(consumers[op]), {op}
    heapq.heapify(pending)
    while pending:
        user = heapq.heappop(pending)
        if user not in seen and part[user] == part[op]:
            seen.add(user)
            earlier = [source for source in producers[user] if eligible[source] and source < op]
            if earlier:
                return max(earlier)
            for other in consumers[user]:
                heapq.heappush(pending, other)
    return None


def _descendants(consumers: Sequence[Sequence[int]], op: int) -> set[int]:
    """The op, and all that needs it, directly or not."""
    stack, seen = [op], {op}
    while stack:
        new = set(consumers[stack.pop()]) - seen
        seen |= new
        stack.extend(new)
    return seen
