"""A sequence-to-sequence network that chooses a device for each element of a sequence.

Legend: B sequences, K samples (a multiple of B), U elements, S of them, D devices, H hidden, A attention width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placeto.distributed import Randomness
from placeto.nn_units import DeviceHead, gumbel_noise, log_prob_and_entropy

ATTENTION_WIDTH = 16
_MOST = 2**25  # numbers in the attention's largest tensor


class SequencePlacer(nn.Module):
    """LSTM encoder, LSTM decoder with content attention, embeddings of chosen devices fed back.

    At step i the decoder reads the device of element i - 1 and the encoder's output for element i. Attention is
    additive (Bahdanau et al. 2015, arXiv 1409.0473), with the decoder's output as the query, so that the
    log-probabilities of a given sequence need no loop. The encoder reads the sequence both ways.

    Shapes: ``x`` (B, U, H), ``devices`` (D, H) from the head, ``pair`` (B, U, D), actions (K, U).
    """

    def __init__(self, hidden: int, max_devices: int) -> None:
        super().__init__()
        self.encoder = nn.LSTM(hidden, hidden // 2, bidirectional=True, batch_first=True)
        self.decoder = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.start = nn.Parameter(torch.zeros(hidden))
        self.key = nn.Linear(hidden, ATTENTION_WIDTH, bias=False)
        self.query = nn.Linear(hidden, ATTENTION_WIDTH)
        self.weight = nn.Linear(ATTENTION_WIDTH, 1, bias=False)
        self.out = nn.Linear(2 * hidden, hidden)
        self.head = DeviceHead(hidden, max_devices)

    def sample(
        self, x: Tensor, devices: Tensor, pair: Tensor, count: int, generator: Randomness | None
    ) -> tuple[Tensor, Tensor]:
        """K = `count` sequences of devices, element by element, and their log-probabilities: (K, U) each."""
        memory = self.encoder(x)[0]
        keys = self.key(memory)
        copies = count // len(x)
        read = memory.repeat_interleave(copies, 0)  # (K, U, H)
        decoder = self.decoder
        state = x.new_zeros(count, decoder.hidden_size), x.new_zeros(count, decoder.hidden_size)
        before = self.start.expand(count, -1)
        noise = gumbel_noise((count, x.shape[1], len(devices)), generator, x)
        actions, log_probs = [], []
        for i in range(x.shape[1]):
            state = torch.lstm_cell(torch.cat([before, read[:, i]], -1), state, *decoder.all_weights[0])
            logits = self._logits(state[0][:, None], keys, memory, devices, pair[:, i : i + 1])
            action = (logits + noise[:, i : i + 1]).argmax(-1)
            actions.append(action)
            log_probs.append(log_prob_and_entropy(logits, action)[0])
            before = devices[action[:, 0]]
        return torch.cat(actions, 1), torch.cat(log_probs, 1)

    def score(self, x: Tensor, devices: Tensor, pair: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (K, U) of given sequences (K, U), and entropies (K, U)."""
        memory = self.encoder(x)[0]
        keys = self.key(memory)
        count, length = action.shape
        start = self.start.expand(count, 1, -1)
        before = torch.cat([start, devices[action[:, :-1]]], 1)
        read = memory.repeat_interleave(count // len(x), 0)
        output = self.decoder(torch.cat([before, read], -1))[0]
        steps = max(1, _MOST // (count * length * ATTENTION_WIDTH))
        parts = []
        for i in range(0, length, steps):
            given = output[:, i : i + steps], keys, memory, devices, pair[:, i : i + steps]
            if steps < length:  # one part's attention in memory at a time, in the backward pass too
                parts.append(checkpoint(self._logits, *given, use_reentrant=False))
            else:
                parts.append(self._logits(*given))
        return log_prob_and_entropy(torch.cat(parts, 1), action)

    def _logits(self, output: Tensor, keys: Tensor, memory: Tensor, devices: Tensor, pair: Tensor) -> Tensor:
        """Logits (K, S, D) for outputs (K, S, H) of the decoder; keys (B, U, A), memory (B, U, H), pair (B, S, D)."""
        copies = len(output) // len(memory)
        output = output.unflatten(0, (-1, copies))  # (B, K / B, S, H)
        match = torch.tanh(self.query(output)[..., None, :] + keys[:, None, None])
        attention = self.weight(match)[..., 0].softmax(-1)  # (B, K / B, S, U)
        context = attention @ memory[:, None]
        hidden = torch.tanh(self.out(torch.cat([output, context], -1)))
        return self.head(hidden, devices, pair[:, None]).flatten(0, 1)
