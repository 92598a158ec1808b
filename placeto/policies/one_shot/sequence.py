"""A sequence-to-sequence network that chooses a device for each element of a sequence.

Legend: B sequences, K samples (C of each sequence), U elements, S elements computed at a time, P producers, D devices,
H hidden, A attention width, F features of a pair of an element and a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, one_hot, pad
from torch.utils.checkpoint import checkpoint

from placeto.policies.one_shot.unit_layers import DeviceHead, log_prob_and_entropy

ATTENTION_WIDTH = 32
PAIR_FEATURES = 3  # time, share of the element's inputs made on the device, load of the device less the mean
_MOST = 2**25  # largest size of attention's largest tensor, in numbers


@dataclass(frozen=True)
class Elements:
    """B sequences of U elements each, to be placed on the same D devices."""

    x: Tensor  # (B, U, H) embeddings
    devices: Tensor  # (D, H) embeddings of the devices, from the head
    time: Tensor  # (B, U, D), logarithm of (time on each device / mean over devices)
    work: Tensor  # (B, U), share of the sequence's work, times D
    producers: Tensor  # (B, U, P) int64, earlier elements that each element reads
    shares: Tensor  # (B, U, P), share of each producer in what the element reads; 0 = no producer


class SequencePlacer(nn.Module):
    """An LSTM encoder, and an LSTM decoder with content attention that reads the devices it has chosen.

    At step i the decoder reads the embedding of the device of element i - 1 and the encoder's output for element i.
    Attention is multiplicative (Luong et al. 2015, arXiv 1508.04025), because additive attention takes ten times as
    long. Its query is the decoder's output, so that the log-probabilities of a given sequence need no loop. The encoder
    reads the sequence both ways. With `feedback`, the head also reads the share of the element's inputs made on each
    device, and each device's load: the work that it has so far, less the mean over devices. The head reads a hidden
    state that is computed from the output of the decoder and of attention. The state goes through layer normalisation
    with `normalised`, through a hyperbolic tangent without. `bound` and `temperature` are those of `DeviceHead`.
    """

    def __init__(
        self,
        hidden: int,
        max_devices: int,
        feedback: bool,
        bound: float = 0.0,
        temperature: float = 1.0,
        normalised: bool = False,
    ) -> None:
        super().__init__()
        self.feedback, self.normalised = feedback, normalised
        self.encoder = nn.LSTM(hidden, hidden // 2, bidirectional=True, batch_first=True)
        self.decoder = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.start = nn.Parameter(torch.zeros(hidden))
        self.key = nn.Linear(hidden, ATTENTION_WIDTH, bias=False)
        self.query = nn.Linear(hidden, ATTENTION_WIDTH)
        self.out = nn.Linear(2 * hidden, hidden)
        self.head = DeviceHead(hidden, max_devices, PAIR_FEATURES if feedback else 1, bound, temperature)

    def sample(self, parts: Sequence[Elements], noise: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Choose devices, element by element, for K samples of each of several graphs on D devices.

        Args:
            parts: B sequences of each graph.
            noise: (K, U, D) for each graph, where K is the same multiple of B for all. It is added to the logits, and
                the device with the largest sum is chosen.

        Returns:
            For each graph devices (K, U) int64 and their log-probabilities (K, U).
        """
        counts, lengths = [len(part.x) for part in parts], [part.x.shape[1] for part in parts]
        length, count, copies = max(lengths), sum(counts), len(noise[0]) // counts[0]

        def together(tensors: Sequence[Tensor]) -> Tensor:
            """Concatenate tensors (B, U, ...) of all graphs, with zeros at the end of the shorter sequences."""
            return torch.cat([pad(x, (0, 0) * (x.dim() - 2) + (0, length - x.shape[1])) for x in tensors])

        memory = together([self.encoder(part.x)[0] for part in parts])
        time, work = together([part.time for part in parts]), together([part.work[..., None] for part in parts])
        producers, shares = together([p.producers for p in parts]), together([p.shares for p in parts])
        devices = torch.cat([part.devices.expand(len(part.x), -1, -1) for part in parts])  # (B, D, H)
        beyond = torch.arange(length, device=time.device) >= torch.tensor(lengths, device=time.device)[:, None]
        absent = beyond.repeat_interleave(torch.tensor(counts, device=time.device), 0)
        absent = torch.zeros_like(time[..., 0]).masked_fill(absent, -torch.inf)
        draw = together([each.view(len(part.x), copies, *each.shape[1:]).transpose(1, 2)
                         for part, each in zip(parts, noise, strict=True)])  # (B, U, C, D)  # fmt: skip
        keys, row = self.key(memory), torch.arange(count, device=time.device)[:, None]
        state = 2 * (memory.new_zeros(count * copies, self.decoder.hidden_size),)
        before = self.start.expand(count * copies, -1)
        chosen = memory.new_zeros(count, length, copies, devices.shape[1])  # 1 at the device of each element
        load = memory.new_zeros(count, copies, devices.shape[1])
        all_logits, actions = [], []
        for i in range(length):
            read = memory[:, i, None].expand(-1, copies, -1).flatten(0, 1)
            state = torch.lstm_cell(torch.cat([before, read], -1), state, *self.decoder.all_weights[0])
            pair = time[:, i, None, :, None].expand(-1, copies, -1, -1)
            if self.feedback:
                near = (shares[:, i, :, None, None] * chosen[row, producers[:, i]]).sum(1)  # (B, C, D)
                pair = torch.cat([pair, near[..., None], load[..., None]], -1)
            output = state[0].view(count, copies, 1, -1)
            logits = self._logits(output, keys, memory, absent, devices, pair[:, :, None])[:, :, 0]
            action = (logits + draw[:, i]).argmax(-1)  # (B, C)
            before = devices[row, action].flatten(0, 1)
            if self.feedback:
                chosen[:, i] = one_hot(action, devices.shape[1]).to(chosen.dtype)
                load = load + work[:, i, None] * (chosen[:, i] - 1.0 / devices.shape[1])
            all_logits.append(logits)
            actions.append(action)
        action = torch.stack(actions, -1).flatten(0, 1)
        log_prob, _ = log_prob_and_entropy(torch.stack(all_logits, 2).flatten(0, 1), action)
        sizes = [copies * each for each in counts]
        pieces = zip(action.split(sizes), log_prob.split(sizes), lengths, strict=True)
        return [(a[:, :size], p[:, :size]) for a, p, size in pieces]

    def score(self, part: Elements, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (K, U) of given devices (K, U), and entropies (K, U) in nats."""
        memory = self.encoder(part.x)[0]
        keys = self.key(memory)
        (count, length), blocks = action.shape, len(part.x)
        start = self.start.expand(count, 1, -1)
        before = torch.cat([start, part.devices[action[:, :-1]]], 1)
        read = memory.repeat_interleave(count // blocks, 0)
        output = self.decoder(torch.cat([before, read], -1))[0].unflatten(0, (blocks, -1))  # (B, C, U, H)
        pair = self._pairs(part, action.unflatten(0, (blocks, -1)))
        devices, absent = part.devices.expand(blocks, -1, -1), torch.zeros_like(part.work)
        steps = max(1, _MOST // (count * length))
        parts = []
        for i in range(0, length, steps):
            chunk = output[:, :, i : i + steps], keys, memory, absent, devices, pair[:, :, i : i + steps]
            if steps < length:  # so only one part's attention is in memory, in the backward pass, too
                parts.append(checkpoint(self._logits, *chunk, use_reentrant=False))
            else:
                parts.append(self._logits(*chunk))
        return log_prob_and_entropy(torch.cat(parts, 2).flatten(0, 1), action)

    def _pairs(self, part: Elements, action: Tensor) -> Tensor:
        """Return the features (B, C, U, D, F) of pairs for given devices (B, C, U)."""
        copies = action.shape[1]
        number = len(part.devices)
        time = part.time[:, None, :, :, None].expand(-1, copies, -1, -1, -1)
        if not self.feedback:
            return time
        chosen = one_hot(action, number).to(part.time.dtype)  # (B, C, U, D)
        sources = part.producers.flatten(1)[:, None, :, None].expand(-1, copies, -1, number)
        read = chosen.gather(2, sources).unflatten(2, part.producers.shape[1:])  # (B, C, U, P, D)
        near = (part.shares[:, None, ..., None] * read).sum(3)
        added = part.work[:, None, :, None] * (chosen - 1.0 / number)
        load = added.cumsum(2) - added
        return torch.cat([time, near[..., None], load[..., None]], -1)

    def _logits(
        self, output: Tensor, keys: Tensor, memory: Tensor, absent: Tensor, devices: Tensor, pair: Tensor
    ) -> Tensor:
        """Return the logits (B, C, S, D) for outputs (B, C, S, H) of the decoder.

        The other arguments are `keys` (B, U, A), `memory` (B, U, H), `absent` (B, U), -inf where a sequence has no
        element and else 0, `devices` (B, D, H) and `pair` (B, C, S, D, F).
        """
        shape, output, pair = output.shape[:3], output.flatten(1, 2), pair.flatten(1, 2)  # batched products copy less
        match = self.query(output) @ keys.transpose(-1, -2) + absent[:, None]  # (B, C * S, U)
        context = match.softmax(-1) @ memory
        hidden = self.out(torch.cat([output, context], -1))
        hidden = layer_norm(hidden, hidden.shape[-1:]) if self.normalised else torch.tanh(hidden)
        return self.head(hidden, devices, pair).view(*shape, -1)
