"""Modules of many kinds, small: what people have, each with inputs and loss of a training step.

``python -m tests.capture.zoo`` prints a table: ops, seconds, and FLOPs by those worked out by hand.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from placeto.capture import capture_training
from tests.capture.hugging_face import MODELS
from tests.capture.steps import Entry, Step
from tests.capture.zoo_flops import ZOO_FLOPS
from tests.parts import Parts


def total(output: Any, *_: Any) -> Tensor:
    """Something to train: the sum of squares."""
    return output.square().sum()


def mlp() -> Step:
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 5))
    return Step(net, [torch.randn(4, 8)], F.cross_entropy, [torch.tensor([0, 1, 2, 3])])


def convnet() -> Step:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 16, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    return Step(net, [torch.randn(2, 3, 16, 16)], F.cross_entropy, [torch.tensor([0, 1])])


class Block(nn.Module):
    """Two convolutions, and what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norms[1](self.two(F.relu(self.norms[0](self.one(x))))))


def resnet() -> Step:
    net = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), Block(8), Block(8), nn.Flatten(1), nn.Linear(8 * 64, 3))
    return Step(net, [torch.randn(2, 3, 16, 16)], total)


class UNet(nn.Module):
    """Down, up with a transposed convolution, and a skip; with a time to embed, as in diffusion."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 2, 3, padding=1)
        self.time, self.norm = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        high = F.silu(self.down(x))
        low = self.norm(self.low(high))
        if time is not None:
            angles = time[:, None] * torch.exp(-torch.arange(4, device=x.device))
            low = low + self.time(torch.cat([angles.sin(), angles.cos()], dim=1))[:, :, None, None]
        return self.out(torch.cat([high, self.up(F.silu(low))], dim=1))


def unet() -> Step:
    return Step(UNet(), [torch.randn(2, 2, 8, 8)], F.mse_loss, [torch.randn(2, 2, 8, 8)])


def diffusion() -> Step:
    inputs = {"x": torch.randn(2, 2, 8, 8), "time": torch.tensor([1.0, 5.0])}
    return Step(UNet(), inputs, F.mse_loss, [torch.randn(2, 2, 8, 8)])


def autoencoder() -> Step:
    class Variational(Parts):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            mean, log = self.encode(x).chunk(2, dim=1)
            made = self.decode(mean + torch.randn_like(mean) * torch.exp(log / 2))
            return {"loss": F.mse_loss(made, x) - (1 + log - mean**2 - log.exp()).mean() / 2, "made": made}

    return Step(Variational(encode=nn.Linear(16, 8), decode=nn.Linear(4, 16)), [torch.randn(4, 16)])


class Recurrent(nn.Module):
    """A recurrent net over words, and a layer over all its outputs; packed if lengths are given."""

    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.embed, self.net = nn.Embedding(20, 8), kind(8, 6, batch_first=True, **options)
        self.out = nn.LazyLinear(20)

    def forward(self, words: Tensor, lengths: Tensor | None = None) -> Tensor:
        x: Any = self.embed(words)
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, batch_first=True)
        x, _ = self.net(x)
        if lengths is not None:
            x, _ = pad_packed_sequence(x, batch_first=True)
        return self.out(x)


def recurrent(kind: Callable[..., nn.Module], packed: bool = False, **options: Any) -> Step:
    net, words = Recurrent(kind, **options), torch.randint(20, (3, 5))
    inputs = [words, torch.tensor([5, 3, 2])] if packed else [words]
    net(*inputs)
    return Step(net, inputs, total)


def cells() -> Step:
    class Unrolled(Parts):
        def forward(self, x: Tensor) -> Tensor:
            state: Any = (torch.zeros_like(x[0]), torch.zeros_like(x[0]))
            for step in x.unbind():
                state = self.lstm(self.gru(step, state[0]), state)
            return state[0]

    return Step(Unrolled(lstm=nn.LSTMCell(4, 4), gru=nn.GRUCell(4, 4)), [torch.randn(4, 2, 4)], total)


def transformer() -> Step:
    net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    return Step(net, [torch.randn(2, 5, 8), torch.randn(2, 4, 8)], total)


def attention() -> Step:
    class Attention(Parts):
        def forward(self, x: Tensor) -> Tensor:
            parts = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
            return self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))

    return Step(Attention(qkv=nn.Linear(16, 48), out=nn.Linear(16, 16)), [torch.randn(2, 6, 16)], total)


class Experts(Parts):
    """A mixture of experts, each given the tokens that chose it."""

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, _ = torch.where(chosen == number)
            if len(tokens):
                out = out.index_add(0, tokens, expert(x[tokens]) * weights[tokens])
        return out


def experts(kind: type[Experts] = Experts) -> Step:
    net = kind(router=nn.Linear(8, 3), experts=nn.ModuleList([nn.Linear(8, 8) for _ in range(3)]))
    return Step(net, [torch.randn(12, 8)], total)


def masked_experts() -> Step:
    class Masked(Experts):
        def forward(self, x: Tensor) -> Tensor:
            weights, chosen = self.router(x).softmax(-1).topk(1)
            parts = [torch.where(chosen == i, expert(x) * weights, 0.0) for i, expert in enumerate(self.experts)]
            return torch.stack(parts).sum(0)

    return experts(Masked)


def dlrm() -> Step:
    class Recommender(Parts):
        def forward(self, dense: Tensor, sparse: list[Tensor]) -> Tensor:
            features = [self.dense(dense), *(table(x) for table, x in zip(self.tables, sparse, strict=True))]
            stacked = torch.stack(features, dim=1)
            i, j = torch.triu_indices(4, 4, 1)
            pairs = torch.bmm(stacked, stacked.transpose(1, 2))[:, i, j]
            return self.top(torch.cat([features[0], pairs], dim=1))

    tables = nn.ModuleList([nn.EmbeddingBag(30, 8, mode="sum") for _ in range(3)])
    sparse = [torch.randint(30, (5, 2)) for _ in range(3)]
    net = Recommender(tables=tables, dense=nn.Linear(4, 8), top=nn.Linear(8 + 6, 1))
    return Step(net, [torch.randn(5, 4), sparse], total)


def capsule() -> Step:
    class Capsules(Parts):
        def forward(self, x: Tensor) -> Tensor:
            votes = (self.weight @ x[:, None, :, :, None]).squeeze(-1)
            logits = torch.zeros(len(x), 3, 6, 1)
            for _ in range(2):
                out = (logits.softmax(1) * votes).sum(2, keepdim=True)
                out = out * out.norm(dim=-1, keepdim=True) / (1 + out.square().sum(-1, keepdim=True))
                logits = logits + (votes * out).sum(-1, keepdim=True)
            return out

    return Step(Capsules(weight=nn.Parameter(torch.randn(1, 3, 6, 4, 4))), [torch.randn(2, 6, 4)], total)


def tied() -> Step:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix, self.out = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, words: Tensor) -> Tensor:
            out: Tensor = self.out(torch.tanh(self.mix(self.embed(words))))
            return out.flatten(0, 1)

    words = torch.randint(20, (2, 4))
    return Step(Tied(), [words], F.cross_entropy, [words.flatten()])


def frozen() -> Step:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    for part in (net[0], net[2]):
        part.requires_grad_(False)
    net[0].bias.requires_grad_(True)
    return Step(net, [torch.randn(4, 8)], total)


def checkpointed(reentrant: bool) -> Step:
    class Checkpointed(Parts):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=reentrant)
            return x

    first = nn.Linear(8, 8)
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(2))
    return Step(Checkpointed(first=first, parts=blocks), [torch.randn(4, 8)], total)


def spectral() -> Step:
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 4, 3)), nn.Flatten(), nn.Linear(24, 4))
    return Step(net, [torch.randn(3, 2, 8)], total)


def video() -> Step:
    net = nn.Sequential(nn.Conv3d(1, 4, 3), nn.InstanceNorm3d(4, affine=True), nn.PReLU(), nn.AvgPool3d(2))
    return Step(net, [torch.randn(2, 1, 6, 6, 6)], total)


def einsums() -> Step:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.channels = nn.Parameter(torch.randn(6, 6)), nn.Bilinear(4, 4, 4)
            self.register_buffer("mask", torch.ones(6, 6).tril())

        def forward(self, x: Tensor) -> Tensor:
            x = torch.einsum("bsc,st->btc", x, self.tokens * self.mask)
            return self.channels(x, torch.fft.fft(x).real)

    return Step(Mixer(), [torch.randn(2, 6, 4)], total)


def graph_net(kind: str) -> Step:
    from torch_geometric import nn as geometric

    class Net(Parts):
        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.two(F.relu(self.one(x, edges)), edges)

    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])
    conv = getattr(geometric, kind)
    return Step(Net(one=conv(8, 6), two=conv(6, 3)), [torch.randn(6, 8), edges], total)


ZOO = {
    "mlp": Entry(mlp),
    "convnet": Entry(convnet),
    "resnet": Entry(resnet),
    "unet": Entry(unet),
    "diffusion": Entry(diffusion),
    "autoencoder": Entry(autoencoder),
    "rnn": Entry(lambda: recurrent(nn.RNN)),
    "lstm": Entry(lambda: recurrent(nn.LSTM, bidirectional=True)),
    "gru": Entry(lambda: recurrent(nn.GRU)),
    "lstm-packed": Entry(lambda: recurrent(nn.LSTM, packed=True), run=True),
    "gru-packed": Entry(lambda: recurrent(nn.GRU, packed=True, bidirectional=True), run=True),
    "cells": Entry(cells),
    "transformer": Entry(transformer),
    "attention": Entry(attention),
    "experts": Entry(experts, run=True),
    "masked-experts": Entry(masked_experts),
    "dlrm": Entry(dlrm),
    "capsule": Entry(capsule),
    "tied": Entry(tied),
    "frozen": Entry(frozen),
    "checkpoint": Entry(lambda: checkpointed(reentrant=False)),
    "checkpoint-reentrant": Entry(lambda: checkpointed(reentrant=True)),
    "spectral": Entry(spectral),
    "video": Entry(video),
    "einsums": Entry(einsums),
    "gcn": Entry(lambda: graph_net("GCNConv"), run=True),
    "gat": Entry(lambda: graph_net("GATConv"), run=True),
    "sage": Entry(lambda: graph_net("SAGEConv")),
    **MODELS,
}
"""Name -> entry."""


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| module | ops | seconds | FLOPs / by hand | captured by |")
    print("| :--- | ---: | ---: | ---: | :--- |")
    for name, entry in ZOO.items():
        step = entry.make()
        began = time.process_time()
        graph = capture_training(step.module, step.inputs, step.loss, targets=step.targets, run=entry.run)
        seconds = time.process_time() - began
        ratio = f"{graph.flops.sum() / ZOO_FLOPS[name]:.4f}"
        print(f"| {name} | {graph.num_ops} | {seconds:.2f} | {ratio} | {'running' if entry.run else 'shapes'} |")


if __name__ == "__main__":
    main()
