"""Ops of a step that wait for other ops, although they read none of the tensors that these make."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from placeto.capture.tracing.dependencies import reached
from placeto.capture.tracing.node_labels import Label


def hold_back(
    records: Sequence[dict[str, Any]], labels: Sequence[Label], random: Collection[int], loss: int | None
) -> None:
    """Add edges to op records, so that no op runs much earlier than in PyTorch only because its inputs are there early.

    An op of the backward pass that depends on no earlier op of this pass, such as a recomputed activation, could run in
    the forward pass. But autograd runs it for one of its nodes, once the gradients of this node are there. So the op
    waits for the last gradient that its node is given or, if the gradients are constants, for the loss. An op of the
    forward pass that draws random numbers waits for the tensor that they are combined with. To wait for an op is to
    read an output of 0 bytes of it.

    Args:
        records: the records of the ops, in the order of the trace. An op that waits gets a further input, and the op
            that it waits for gets an output of 0 bytes.
        labels: where each op comes from.
        random: ops that draw random numbers.
        loss: the op that makes the loss; None if none does.
    """
    producers = [{source for source, _ in record["inputs"]} for record in records]
    consumers: list[list[int]] = [[] for _ in producers]
    for op, sources in enumerate(producers):
        for source in sources:
            consumers[source].append(op)
    last_gradient = _gradients_given(producers, labels)
    after_loss = () if loss is None else reached([loss], consumers.__getitem__)
    signals: dict[int, int] = {}  # op -> its output of 0 bytes
    for op, sources in enumerate(producers):
        label, awaited = labels[op], None
        if label.backward and not any(labels[source].backward for source in sources):
            awaited = None if label.node is None else last_gradient.get(label.node)
            if awaited is None and op not in after_loss:
                awaited = loss
        elif not label.backward and op in random and not sources:
            awaited = _partner(records, producers, consumers, op)
        if awaited is not None:
            if awaited not in signals:
                signals[awaited] = len(records[awaited]["outputs"])
                records[awaited]["outputs"].append(0)
            records[op]["inputs"].append((awaited, signals[awaited]))


def _gradients_given(producers: Sequence[set[int]], labels: Sequence[Label]) -> dict[int, int]:
    """Node of autograd -> the op that makes the last of the gradients that the node is given."""
    last_gradient: dict[int, int] = defaultdict(lambda: -1)
    for op, sources in enumerate(producers):
        label = labels[op]
        if not label.backward or label.node is None:
            continue
        for source in sources:
            if labels[source].backward and labels[source].node != label.node:
                last_gradient[label.node] = max(last_gradient[label.node], source)
    return dict(last_gradient)


def _partner(
    records: Sequence[dict[str, Any]],
    producers: Sequence[set[int]],
    consumers: Sequence[list[int]],
    op: int,
) -> int | None:
    """The op that `op`, which draws random numbers, waits for, or None.

    It is found at the first user of the numbers, or of what is made of them, that also reads tensors of computing ops
    from before `op`. The last of these ops is returned.
    """
    pending, seen = list(consumers[op]), {op}
    heapq.heapify(pending)
    while pending:
        user = heapq.heappop(pending)
        if user not in seen:
            seen.add(user)
            earlier = [source for source in producers[user] if records[source]["type"] != "parameter" and source < op]
            if earlier:
                return max(earlier)
            for consumer in consumers[user]:
                heapq.heappush(pending, consumer)
    return None
