"""The network of `PlacetoPolicy` as one compiled function, for placing: no autograd, no torch.

It answers as the torch policy does within float error. Products of matrices go to BLAS, all else is fused in loops.

Legend: V nodes, M arcs, D devices, R = V D pairs, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from placeto.policies.scales import FINE, FINE_RANGE


class Linear(NamedTuple):
    """A linear layer, ``x @ weight + bias``."""

    weight: np.ndarray  # (in, out) float32
    bias: np.ndarray  # (out,) float32, zeros where the layer has none


class Norm(NamedTuple):
    """A layer's norm over H."""

    weight: np.ndarray  # (H,) float32
    bias: np.ndarray  # (H,) float32


class Round(NamedTuple):
    """`PairMessagePassing`; the two ways are along and against the arcs."""

    norm: Norm
    there: tuple[Linear, Linear]
    here: tuple[Linear, Linear]
    edge: tuple[Linear, Linear]
    update: tuple[Linear, Linear]


class Network(NamedTuple):
    """All parameters of a `PlacetoPolicy`."""

    from_node: Linear
    from_pair: Linear
    from_own: Linear
    head_norm: Norm
    head: tuple[Linear, Linear, Linear]
    shortcut: tuple[Linear, Linear]


class CompiledPolicy:
    """The logits of a `PlacetoPolicy`, computed by one thread.

    Args:
        parameters: as the policy's ``state_dict()`` names them, arrays (or tensors on the CPU) of float32.
        rounds: of messages.
        change_weight: of the predicted change in the logit.
    """

    def __init__(self, parameters: Mapping[str, Any], rounds: int, change_weight: float) -> None:
        self.parameters = {name: np.asarray(value, np.float32) for name, value in parameters.items()}
        self._network = Network(
            self._linear("from_node"),
            self._linear("from_pair"),
            self._linear("from_own"),
            self._norm("head.0"),
            (self._linear("head.1"), self._linear("head.3"), self._linear("head.5")),
            (self._linear("shortcut.0"), self._linear("shortcut.2")),
        )
        self._rounds = tuple(self._round(f"pair_messages.{number}") for number in range(rounds))
        self._change_weight = np.float32(change_weight)

    @classmethod
    def of(cls, policy: Any) -> CompiledPolicy:
        """That of a `PlacetoPolicy`, with its parameters of now."""
        parameters = {name: value.cpu() for name, value in policy.state_dict().items()}
        return cls(parameters, policy.config.rounds, policy.config.change_weight)

    def __call__(
        self, node: np.ndarray, pair: np.ndarray, arcs: np.ndarray, edge: np.ndarray, current: np.ndarray
    ) -> np.ndarray:
        """Logits (V, D) float32, zero at each node's current device.

        Args:
            node: (V, node features) float32.
            pair: (V, D, pair features) float32.
            arcs: (2, M) int64, from which node to which.
            edge: (M, edge features) float32.
            current: (V,) int64, device of each node.
        """
        with np.errstate(all="ignore"):  # a policy whose numbers overflow has no opinion
            first, z = _begin(self._network, node, pair, current)
            for messages in self._rounds:
                _exchange(messages, z, arcs, edge, current)
            return _finish(self._network, first, z, current, pair.shape[1], self._change_weight)

    def _linear(self, name: str) -> Linear:
        weight = np.ascontiguousarray(self.parameters[f"{name}.weight"].T)
        bias = self.parameters.get(f"{name}.bias")
        return Linear(weight, np.zeros(weight.shape[1], np.float32) if bias is None else bias)

    def _norm(self, name: str) -> Norm:
        return Norm(self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"])

    def _round(self, name: str) -> Round:
        there, here, edge = (
            (self._linear(f"{name}.{part}.0"), self._linear(f"{name}.{part}.1")) for part in ("there", "here", "edge")
        )
        update = self._linear(f"{name}.update.0"), self._linear(f"{name}.update.2")
        return Round(self._norm(f"{name}.norm"), there, here, edge, update)


@njit(cache=True, nogil=True, fastmath={"contract", "arcp", "nsz", "afn", "reassoc"})
def _two_scales(x: np.ndarray) -> np.ndarray:
    """(N, F) -> (N, 2 F), see `placeto.policies.scales`."""
    n, f = x.shape
    out = np.empty((n, 2 * f), np.float32)
    one, fine, span = np.float32(1.0), np.float32(1.0 / FINE), np.float32(1.0 / FINE_RANGE)
    for i in range(n):
        for j in range(f):
            out[i, j] = x[i, j]
            scaled = x[i, j] * fine
            size = abs(scaled)
            out[i, f + j] = np.copysign(np.log(size + np.sqrt(size * size + one)), scaled) * span
    return out


@njit(cache=True, nogil=True, inline="always")
def _dot(x: np.ndarray, layer: Linear, positive: bool) -> np.ndarray:
    """(N, out), with negative values cut off if asked."""
    out = np.empty((x.shape[0], layer.weight.shape[1]), np.float32)
    np.dot(x, layer.weight, out)
    _shift(out, layer.bias, positive)
    return out


@njit(cache=True, nogil=True)
def _shift(x: np.ndarray, bias: np.ndarray, positive: bool) -> None:
    zero = np.float32(0.0)
    for i in range(x.shape[0]):
        if positive:
            for j in range(x.shape[1]):
                x[i, j] = max(x[i, j] + bias[j], zero)
        else:
            for j in range(x.shape[1]):
                x[i, j] += bias[j]


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc"})
def _normalised(x: np.ndarray, norm: Norm, out: np.ndarray) -> None:
    """`torch.nn.LayerNorm` of rows (N, H) into the first H columns of `out`."""
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


@njit(cache=True, nogil=True)
def _at_home(rows: np.ndarray, current: np.ndarray, devices: int) -> np.ndarray:
    """(V, F) of the rows (R, F) those of each node's own device."""
    out = np.empty((len(current), rows.shape[1]), rows.dtype)
    for v in range(len(current)):
        out[v] = rows[v * devices + current[v]]
    return out


@njit(cache=True, nogil=True)
def _begin(network: Network, node: np.ndarray, pair: np.ndarray, current: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(R, H) first embeddings, twice."""
    devices = pair.shape[1]
    pairs = _two_scales(pair.reshape(len(node) * devices, pair.shape[2]))
    shared = _dot(_two_scales(node), network.from_node, False)
    shared += _dot(_at_home(pairs, current, devices), network.from_own, False)
    first = _dot(pairs, network.from_pair, False)
    _spread(first, shared)
    first = np.maximum(first, np.float32(0.0))
    return first, first.copy()


@njit(cache=True, nogil=True)
def _exchange(messages: Round, z: np.ndarray, arcs: np.ndarray, edge: np.ndarray, current: np.ndarray) -> None:
    """A round of `PairMessagePassing` on z (R, H), in place."""
    nodes, width = len(current), z.shape[1]
    devices = len(z) // nodes
    read = np.empty((len(z), 3 * width), np.float32)  # what the update reads
    y = np.empty_like(z)
    _normalised(z, messages.norm, y)
    read[:, :width] = y
    home = _at_home(y, current, devices)
    for way in range(2):
        sent, on_arc = _dot(y, messages.there[way], False), _dot(edge, messages.edge[way], False)
        _spread(sent, _dot(home, messages.here[way], False))
        received = _received(sent, on_arc, arcs[way], arcs[1 - way], devices)
        read[:, (1 + way) * width : (2 + way) * width] = received
    z += _dot(_dot(read, messages.update[0], True), messages.update[1], False)


@njit(cache=True, nogil=True)
def _spread(rows: np.ndarray, by_node: np.ndarray) -> None:
    """Add to the rows (R, H) of every pair that of its node (V, H)."""
    devices = len(rows) // len(by_node)
    for v in range(len(by_node)):
        for row in range(v * devices, (v + 1) * devices):
            for j in range(rows.shape[1]):
                rows[row, j] += by_node[v, j]


@njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def _received(
    sent: np.ndarray, on_arc: np.ndarray, sources: np.ndarray, receivers: np.ndarray, devices: int
) -> np.ndarray:
    """(R, H) sums of messages, over the square root of their number."""
    total, zero = np.zeros_like(sent), np.float32(0.0)
    width = sent.shape[1]
    count = np.zeros(len(sent) // devices, np.int64)
    for m in range(len(sources)):
        source, receiver = sources[m] * devices, receivers[m] * devices
        count[receivers[m]] += 1
        for d in range(devices):
            for j in range(width):
                message = sent[source + d, j] + on_arc[m, j]
                total[receiver + d, j] += message if message > zero else zero
    for v in range(len(count)):
        if count[v] > 1:
            scale = np.float32(1.0 / np.sqrt(count[v]))
            for row in range(v * devices, (v + 1) * devices):
                for j in range(width):
                    total[row, j] *= scale
    return total


@njit(cache=True, nogil=True)
def _finish(
    network: Network, first: np.ndarray, z: np.ndarray, current: np.ndarray, devices: int, change_weight: np.float32
) -> np.ndarray:
    """(V, D) logits."""
    y = np.empty_like(z)
    _normalised(z, network.head_norm, y)
    head, shortcut = network.head, network.shortcut
    out = _dot(_dot(_dot(y, head[0], True), head[1], True), head[2], False)
    out += _dot(_dot(first, shortcut[0], True), shortcut[1], False)
    logits = np.empty((len(current), devices), np.float32)
    weight = np.float32(0.1) * change_weight
    for v in range(len(current)):
        own = v * devices + current[v]
        for d in range(devices):
            row = v * devices + d
            logits[v, d] = (out[row, 0] - out[own, 0]) - weight * (out[row, 1] - out[own, 1])
    return logits
