"""Which ops of a step wait for others though they need nothing of theirs."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from placeto.capture.labels import Label


def hold_back(
    records: Sequence[dict[str, Any]], labels: Sequence[Label], random: Collection[int], losses: Mapping[int, int]
) -> None:
    """Keep ops from running before their time, merely because they need nothing that takes long.

    What depends on no earlier op of the backward pass, such as an activation that is computed again, could run in the
    forward pass. Autograd runs it for one of its nodes, and a node runs once its gradients are there. So it waits, for
    an output of no bytes, for the last gradient that its node is given; where these are constants, for the loss of its
    micro-batch. Random numbers of the forward pass wait in the same way for the tensor they are meant for.

    Args:
        records: of the ops, in the order of the trace; what waits gets an input more, and what it waits for an output.
        labels: where each op comes from.
        random: ops that draw random numbers.
        losses: the op that makes the loss of each micro-batch.
    """
    index = {record["name"]: op for op, record in enumerate(records)}
    producers = [{index[source] for source, _ in record["inputs"]} for record in records]
    consumers: list[list[int]] = [[] for _ in producers]
    for op, sources in enumerate(producers):
        for source in sources:
            consumers[source].append(op)
    given = _gradients_given(producers, labels)
    after_loss = {number: _descendants(consumers, loss) for number, loss in losses.items()}
    signals: dict[int, int] = {}  # op -> its output of no bytes
    for op, sources in enumerate(producers):
        label, awaited = labels[op], None
        if label.backward and not any(labels[source].backward for source in sources):
            awaited = given.get((label.micro_batch, label.node))
            if awaited is None and label.micro_batch in losses and op not in after_loss[label.micro_batch]:
                awaited = losses[label.micro_batch]
        elif not label.backward and op in random and not sources:
            awaited = _partner(records, producers, consumers, labels, op)
        if awaited is not None:
            made_by = records[awaited]
            if awaited not in signals:
                signals[awaited] = len(made_by["outputs"])
                made_by["outputs"].append(0)
            records[op]["inputs"].append((made_by["name"], signals[awaited]))


def _gradients_given(producers: Sequence[set[int]], labels: Sequence[Label]) -> dict[tuple[int, int | None], int]:
    """The op that makes the last gradient that each node of autograd is given, by micro-batch and node."""
    found: dict[tuple[int, int | None], int] = defaultdict(lambda: -1)
    for op, sources in enumerate(producers):
        label = labels[op]
        if not label.backward or label.recomputed or label.node is None:
            continue
        key = label.micro_batch, label.node
        for source in sources:
            if labels[source].backward and (labels[source].micro_batch, labels[source].node) != key:
                found[key] = max(found[key], source)
    return dict(found)


def _partner(
    records: Sequence[dict[str, Any]],
    producers: Sequence[set[int]],
    consumers: Sequence[list[int]],
    labels: Sequence[Label],
    op: int,
) -> int | None:
    """The last of the computing ops before `op` among those with which what comes of it is first combined."""
    pending, seen = list(consumers[op]), {op}
    heapq.heapify(pending)
    while pending:
        user = heapq.heappop(pending)
        if user not in seen and labels[user].micro_batch == labels[op].micro_batch:
            seen.add(user)
            earlier = [source for source in producers[user] if records[source]["type"] != "parameter" and source < op]
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
