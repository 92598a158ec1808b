"""The network of `PlacetoPolicy` in compiled functions, for placing: without autograd, and without torch.

The logits are those of the torch policy within float error. They are computed for the requested pairs alone. BLAS
multiplies matrices; everything else is fused in loops.

Legend: V nodes, M arcs, D devices, R requested pairs, H hidden, N rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from placeto.plumbing.array_kernels import copy_into
from placeto.plumbing.compiling import compiled

if TYPE_CHECKING:
    from placeto.environment.observation import Observation

FINE = 0.003
"""A feature x is asinh(x / FINE) on the logarithmic scale, which is nearly linear below FINE."""
FINE_RANGE = 5.0
"""The logarithmic scale is divided by this number, which is roughly asinh(0.2 / FINE)."""


class Linear(NamedTuple):
    """A linear layer, ``x @ weight + bias``."""

    weight: np.ndarray  # (in, out) float32
    bias: np.ndarray  # (out,) float32, zeros where the layer has none


class Norm(NamedTuple):
    """The parameters of a layer normalisation over H."""

    weight: np.ndarray  # (H,) float32
    bias: np.ndarray  # (H,) float32


class Round(NamedTuple):
    """The layers of an `EdgeMessagePassing`; `source` and `edge` have one for each way: along, against the arcs."""

    norm: Norm
    source: tuple[Linear, Linear]
    edge: tuple[Linear, Linear]
    update: tuple[Linear, Linear]


class Network(NamedTuple):
    """The layers of a `PlacetoPolicy` but for its rounds of messages and `from_messages`."""

    from_node: Linear
    from_own: Linear
    from_pair: Linear
    head: tuple[Linear, Linear, Linear]


class CompiledPolicy:
    """The logits of a `PlacetoPolicy`, computed by one thread.

    Args:
        parameters: arrays, or tensors on the CPU, of float32, by their names in the policy's ``state_dict()``.
        rounds: number of rounds of messages.
        change_weight: the policy's setting: a logit is minus this number times the predicted change.

    Raises:
        KeyError: a parameter is missing.
    """

    def __init__(self, parameters: Mapping[str, Any], rounds: int, change_weight: float) -> None:
        self.parameters = {name: np.asarray(value, np.float32) for name, value in parameters.items()}
        self._network = Network(
            self._linear("from_node"),
            self._linear("from_own"),
            self._linear("from_pair"),
            (self._linear("head.0"), self._linear("head.2"), self._linear("head.4")),
        )
        self._rounds = tuple(self._round(f"messages.{number}") for number in range(rounds))
        self._from_messages = self._linear("from_messages") if rounds else None
        self._change_weight = np.float32(change_weight)

    @classmethod
    def of(cls, policy: Any) -> CompiledPolicy:
        """Make a compiled policy from the present parameters of a `PlacetoPolicy`.

        It may share the memory of some parameters: after more training of the policy, make a new one.
        """
        parameters = {name: value.cpu() for name, value in policy.state_dict().items()}
        return cls(parameters, policy.config.rounds, policy.config.change_weight)

    def __call__(self, seen: Observation, legal: np.ndarray) -> np.ndarray:
        """Return logits (V, D) float32 of moves; 0 at each node's current device and at pairs not in `legal` (V, D)."""
        with np.errstate(all="ignore"):  # numbers may overflow: a sweep makes no move by logits that aren't finite
            base = _begin(self._network, seen.node, seen.pair, seen.current)
            if self._from_messages is not None:
                z = np.maximum(base, np.float32(0.0))
                for messages in self._rounds:
                    _exchange(messages, z, seen.arcs, seen.edge)
                base += z @ self._from_messages.weight
            return _finish(self._network, base, seen.pair, seen.current, legal, self._change_weight)

    def _linear(self, name: str) -> Linear:
        weight = np.ascontiguousarray(self.parameters[f"{name}.weight"].T)
        bias = self.parameters.get(f"{name}.bias")
        return Linear(weight, np.zeros(weight.shape[1], np.float32) if bias is None else bias)

    def _norm(self, name: str) -> Norm:
        return Norm(self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"])

    def _round(self, name: str) -> Round:
        source, edge = (
            (self._linear(f"{name}.{part}.0"), self._linear(f"{name}.{part}.1")) for part in ("source", "edge")
        )
        update = self._linear(f"{name}.update.0"), self._linear(f"{name}.update.2")
        return Round(self._norm(f"{name}.norm"), source, edge, update)


_TOGETHER = 512  # pairs that are computed at a time, so that their intermediate results stay in the cache


@compiled(inner=True, fastmath={"contract", "arcp", "nsz", "afn", "reassoc"})
def _two_scales(x: np.ndarray) -> np.ndarray:
    """Append each of F features on a logarithmic scale: (N, F) -> (N, 2 F), by `FINE` and `FINE_RANGE`."""
    n, f = x.shape
    scaled_rows = np.empty((n, 2 * f), np.float32)
    unit, fine, span = np.float32(1.0), np.float32(1.0 / FINE), np.float32(1.0 / FINE_RANGE)
    for i in range(n):
        for j in range(f):
            scaled_rows[i, j] = x[i, j]
            scaled = x[i, j] * fine
            size = abs(scaled)
            scaled_rows[i, f + j] = np.copysign(np.log(size + np.sqrt(size * size + unit)), scaled) * span
    return scaled_rows


@compiled(inner=True, inline="always")
def _dot(x: np.ndarray, layer: Linear, positive: bool) -> np.ndarray:
    """Apply a linear layer to rows: (N, in) -> (N, out). With `positive`, a ReLU follows."""
    out = np.empty((x.shape[0], layer.weight.shape[1]), np.float32)
    np.dot(x, layer.weight, out)
    _shift(out, layer.bias, positive)
    return out


@compiled(inner=True)
def _shift(x: np.ndarray, bias: np.ndarray, positive: bool) -> None:
    zero = np.float32(0.0)
    for i in range(x.shape[0]):
        if positive:
            for j in range(x.shape[1]):
                x[i, j] = max(x[i, j] + bias[j], zero)
        else:
            for j in range(x.shape[1]):
                x[i, j] += bias[j]


@compiled(inner=True, fastmath={"contract", "reassoc"})
def _normalised(x: np.ndarray, norm: Norm, out: np.ndarray) -> None:
    """Write the `torch.nn.LayerNorm` of rows (N, H) to the first H columns of `out`."""
    n, width = x.shape
    for i in range(n):
        total, square = np.float32(0.0), np.float32(0.0)
        for j in range(width):
            total += x[i, j]
        mean = total / np.float32(width)
        for j in range(width):
            square += (x[i, j] - mean) * (x[i, j] - mean)
        scale = np.float32(1.0) / np.sqrt(square / np.float32(width) + np.float32(1e-5))
        for j in range(width):
            out[i, j] = (x[i, j] - mean) * scale * norm.weight[j] + norm.bias[j]


@compiled()
def _begin(network: Network, node: np.ndarray, pair: np.ndarray, current: np.ndarray) -> np.ndarray:
    """Return (V, H) what all pairs of a node add to the hidden layer, without the part of messages."""
    at_current = np.empty((len(current), pair.shape[2]), np.float32)
    for v in range(len(current)):
        copy_into(at_current[v], pair[v, current[v]])
    base = _dot(_two_scales(node), network.from_node, False)
    base += _dot(_two_scales(at_current), network.from_own, False)
    return base


@compiled()
def _exchange(messages: Round, z: np.ndarray, arcs: np.ndarray, edge: np.ndarray) -> None:
    """Apply a round of `EdgeMessagePassing` to z (V, H), in place."""
    width = z.shape[1]
    read = np.empty((len(z), 3 * width), np.float32)  # input of the update: embeddings and received messages
    y = np.empty_like(z)
    _normalised(z, messages.norm, y)
    for v in range(len(y)):
        copy_into(read[v], y[v])
    for way in range(2):
        sent, on_arc = _dot(y, messages.source[way], False), _dot(edge, messages.edge[way], False)
        received = _received(sent, on_arc, arcs[way], arcs[1 - way])
        for v in range(len(received)):
            copy_into(read[v, (1 + way) * width :], received[v])
    z += _dot(_dot(read, messages.update[0], True), messages.update[1], False)


@compiled(inner=True, fastmath={"contract", "nsz"})
def _received(sent: np.ndarray, on_arc: np.ndarray, sources: np.ndarray, receivers: np.ndarray) -> np.ndarray:
    """Return (V, H) the sum of the messages that each node receives, divided by the square root of their number."""
    total, zero = np.zeros_like(sent), np.float32(0.0)
    width = sent.shape[1]
    count = np.zeros(len(sent), np.int64)
    for m in range(len(sources)):
        source, receiver = sources[m], receivers[m]
        count[receiver] += 1
        for j in range(width):
            message = sent[source, j] + on_arc[m, j]
            total[receiver, j] += message if message > zero else zero
    for v in range(len(count)):
        if count[v] > 1:
            scale = np.float32(1.0 / np.sqrt(count[v]))
            for j in range(width):
                total[v, j] *= scale
    return total


@compiled()
def _finish(
    network: Network,
    base: np.ndarray,
    pair: np.ndarray,
    current: np.ndarray,
    asked: np.ndarray,
    change_weight: np.float32,
) -> np.ndarray:
    """Compute the logits (V, D) of the pairs `asked` (V, D) from `base` (V, H)."""
    nodes, devices = asked.shape
    slot, device = np.empty(nodes * devices, np.int64), np.empty(nodes * devices, np.int64)
    count = 0
    for v in range(nodes):
        for d in range(devices):
            if asked[v, d] and d != current[v]:
                slot[count], device[count] = v, d
                count += 1
    logits = np.zeros((nodes, devices), np.float32)
    weight, zero, head = np.float32(0.1) * change_weight, np.float32(0.0), network.head
    for first in range(0, count, _TOGETHER):
        size = min(_TOGETHER, count - first)
        pairs = np.empty((size, pair.shape[2]), np.float32)
        for r in range(size):
            copy_into(pairs[r], pair[slot[first + r], device[first + r]])
        rows = _dot(_two_scales(pairs), network.from_pair, False)
        for r in range(size):
            for j in range(rows.shape[1]):
                rows[r, j] = max(rows[r, j] + base[slot[first + r], j], zero)
        out = _dot(_dot(_dot(rows, head[0], True), head[1], True), head[2], False)
        for r in range(size):
            logits[slot[first + r], device[first + r]] = -weight * out[r, 0]
    return logits
