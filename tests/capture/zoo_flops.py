"""FLOPs of a training step of each module in the zoo, worked out from its sizes alone.

Of a product forward and two gradients cost the same, so a layer takes 3 times its forward pass, and twice where its
input needs no gradient. Fused attention computes its 2 products again in the backward pass, beside 4: 3.5 times as much
as two, in 5 products of which one is shared.
"""

from math import log2


def lin(rows: int, inputs: int, outputs: int) -> int:
    """Rows by a matrix."""
    return 2 * rows * inputs * outputs


def conv(batch: int, channels: int, positions: int, patch: int) -> int:
    """So many output channels at so many positions, of patches of so many numbers."""
    return 2 * batch * channels * positions * patch


def att(batch: int, queries: int, keys: int, width: int) -> int:
    """Scores and sums of values of all heads together."""
    return 4 * batch * queries * keys * width


def layer(rows: int, d: int, inner: int, layers: int = 2) -> int:
    """Projections of queries, keys, values and outputs, and the layers behind."""
    return 4 * lin(rows, d, d) + layers * lin(rows, d, inner)


def recurrent(gates: int, directions: int = 1) -> int:
    """A net of width 6 over 3 x 5 words of width 8: the first of 5 states needs no gradient; then a layer of 20."""
    cells = 3 * lin(15, 8, 6) + 2 * lin(15, 6, 6) + lin(12, 6, 6)
    return gates * directions * cells + 3 * lin(15, 6 * directions, 20)


def packed(gates: int, states: tuple[int, ...]) -> int:
    """The same of 5 + 3 + 2 words, with so many states that need gradients in each direction."""
    cells = sum(3 * lin(10, 8, 6) + 2 * lin(10, 6, 6) + lin(state, 6, 6) for state in states)
    return gates * cells + 3 * lin(15, 6 * len(states), 20)


def transformer() -> float:
    """2 x 5 words and 2 x 4 words of width 8, which are not trained: inputs of attention need no gradient."""
    encoder = 2 * lin(10, 8, 24) + 3 * lin(10, 8, 8) + 3.5 * att(2, 5, 5, 8) + 3 * 2 * lin(10, 8, 16)
    itself = 2 * lin(8, 8, 24) + 3 * lin(8, 8, 8) + 3.5 * att(2, 4, 4, 8)
    across = 3 * (lin(8, 8, 8) + lin(10, 8, 16) + lin(8, 8, 8)) + 3.5 * att(2, 4, 5, 8)
    return encoder + itself + across + 3 * 2 * lin(8, 8, 16)


def unet(time: int = 0) -> int:
    down, low, up, out = conv(2, 4, 64, 2 * 9), conv(2, 8, 16, 4 * 9), conv(2, 8, 16, 4 * 4), conv(2, 2, 64, 8 * 9)
    return 2 * down + 3 * (low + up + out) + time


def cells() -> int:
    """Four steps of 2 rows of width 4, by 3 and by 4 gates; inputs need no gradient, nor do the first states."""
    gru, lstm = lin(2, 4, 12), lin(2, 4, 16)
    forward, gradients = 4 * 2 * (gru + lstm), 3 * (2 * gru + gru + 4 * lstm)
    return forward + gradients + 2 * gru + 3 * lstm


def einsums() -> float:
    """A product of 2 x (4, 6, 6), a real transform, a complex one back, and one bilinear form with 3 gradients."""
    bilinear = 2 * 12 * 4 * 4 * 4 + 2 * 12 * 4 * 4
    return 2 * 2 * 2 * 4 * 6 * 6 + (2.5 + 5) * 48 * log2(4) + 4 * bilinear


_BLOCK = 4 * conv(2, 8, 64, 8 * 9)  # of 4 convolutions
_TEXT = layer(12, 16, 32)  # 2 x 6 words
_PICTURE = 2 * 3 * layer(10, 16, 32) + 2 * 3.5 * att(2, 5, 5, 16)  # 2 x 5 patches
_HEAD = lin(12, 16, 40)
_LLAMA = 2 * lin(12, 16, 16) + 2 * lin(12, 16, 8)  # projections, of keys and values half as wide
_CLASSES = lin(2, 16, 2)
_PATCHES = conv(2, 16, 4, 3 * 16 * 16)

ZOO_FLOPS: dict[str, float] = {
    "mlp": 2 * lin(4, 8, 16) + 3 * lin(4, 16, 5),
    "convnet": 2 * conv(2, 8, 256, 27) + 3 * (conv(2, 8, 36, 9) + conv(2, 16, 36, 8) + lin(2, 16, 5)),
    "resnet": 2 * conv(2, 8, 64, 3 * 49) + 3 * (_BLOCK + lin(2, 512, 3)),
    "unet": unet(),
    "diffusion": unet(2 * lin(2, 8, 8) + 3 * lin(2, 8, 8)),
    "autoencoder": 2 * lin(4, 16, 8) + 3 * lin(4, 4, 16),
    "rnn": recurrent(1),
    "lstm": recurrent(4, 2),
    "gru": recurrent(3),
    "lstm-packed": packed(4, (7,)),  # but for the states of the first step, of 3 rows
    "gru-packed": packed(3, (7, 9)),  # but for the first step, of 1 row, in the other direction
    "cells": cells(),
    "transformer": transformer(),
    "attention": 2 * lin(12, 16, 48) + 3.5 * att(2, 6, 6, 16) + 3 * lin(12, 16, 16),
    "experts": 2 * lin(12, 8, 3) + 2 * lin(12, 8, 8),
    "masked-experts": 2 * lin(12, 8, 3) + 2 * 3 * lin(12, 8, 8),
    "dlrm": 2 * lin(5, 4, 8) + 3 * 5 * lin(4, 8, 4) + 3 * lin(5, 14, 1),
    "capsule": 2 * 2 * 3 * 6 * lin(1, 4, 4),
    "tied": 3 * lin(8, 8, 8) + 3 * lin(8, 8, 20),
    "frozen": lin(4, 8, 16) + 2 * lin(4, 16, 16) + 3 * lin(4, 16, 4),
    # of each part the first layer is computed again: nothing needs the output of the second
    "checkpoint": 2 * lin(4, 8, 8) + 2 * (4 * lin(4, 8, 16) + 3 * lin(4, 16, 8)),
    "checkpoint-reentrant": 2 * lin(4, 8, 8) + 2 * (4 * lin(4, 8, 16) + 4 * lin(4, 16, 8)),
    "spectral": 2 * conv(3, 4, 6, 2 * 3) + 3 * lin(3, 24, 4),
    "video": 2 * conv(2, 4, 64, 27),
    "einsums": einsums(),
    "gcn": 2 * lin(6, 8, 6) + 3 * lin(6, 6, 3),
    "gat": 2 * lin(6, 8, 6) + 3 * lin(6, 6, 3),
    "sage": 2 * (2 * lin(6, 8, 6) + 3 * lin(6, 6, 3)),
    "bert": 3 * (2 * (_TEXT + att(2, 6, 6, 16)) + lin(2, 16, 16) + _CLASSES),
    # queries by 1024 positions' keys, and keys by their queries
    "deberta": 3 * (2 * (_TEXT + att(2, 6, 6, 16) + 2 * 2 * lin(6, 16, 1024) + 2 * lin(1024, 16, 16)))
    + 3 * (lin(2, 16, 16) + _CLASSES),
    "distilbert": 3 * (2 * (_TEXT + att(2, 6, 6, 16)) + lin(12, 16, 16) + _HEAD),
    "gpt2": 3 * (2 * (layer(12, 16, 64) + att(2, 6, 6, 16)) + _HEAD),
    "opt": 2 * (3 * _TEXT + 3.5 * att(2, 6, 6, 16)) + 3 * _HEAD,
    "llama": 2 * (3 * (_LLAMA + 3 * lin(12, 16, 32)) + 3.5 * att(2, 6, 6, 16)) + 3 * _HEAD,
    "gemma": 2 * (3 * (_LLAMA + 3 * lin(12, 16, 32)) + 3.5 * att(2, 6, 6, 16)) + 3 * _HEAD,
    # each word goes to 2 of 3 experts
    "mixtral": 2 * (3 * (_LLAMA + lin(12, 16, 3) + 2 * 3 * lin(12, 16, 32)) + 3.5 * att(2, 6, 6, 16)) + 3 * _HEAD,
    # 32 channels: a convolution of 4 that is cut to 6 of 9 positions, steps of rank 1, 4 states a channel
    "mamba": 3 * (lin(12, 16, 64) + conv(2, 32, 9, 4) + lin(12, 32, 1 + 2 * 4) + lin(12, 1, 32))
    + 3 * (2 * 6 * lin(32, 4, 1) + lin(12, 32, 16) + _HEAD),
    "t5": 3 * (2 * _TEXT + 4 * lin(12, 16, 16) + 3 * att(2, 6, 6, 16) + _HEAD),
    "vit": 2 * _PATCHES + _PICTURE + 3 * _CLASSES,
    # 64 patches of width 8 in 8 windows of 16, then 16 of width 16 in 2
    "swin": 2 * conv(2, 8, 64, 3 * 16) + 3 * (layer(128, 8, 32) + att(8, 16, 16, 8) + lin(32, 32, 16))
    + 3 * (layer(32, 16, 64) + att(2, 16, 16, 16) + _CLASSES),
    "convnext": 2 * conv(2, 8, 64, 3 * 16) + 3 * (conv(2, 8, 64, 49) + 2 * lin(128, 8, 32) + conv(2, 16, 16, 8 * 4))
    + 3 * (conv(2, 16, 16, 49) + 2 * lin(32, 16, 64) + _CLASSES),
    # bottlenecks of 2 and of 4 channels, the second with a shortcut
    "resnet-hf": 2 * conv(2, 8, 256, 3 * 49) + 3 * (conv(2, 2, 64, 8) + conv(2, 2, 64, 2 * 9) + conv(2, 8, 64, 2))
    + 3 * (conv(2, 4, 64, 8) + conv(2, 4, 16, 4 * 9) + conv(2, 16, 16, 4) + conv(2, 16, 16, 8) + _CLASSES),
    "clip": 2 * _PATCHES + _PICTURE + 2 * (3 * _TEXT + 3.5 * att(2, 6, 6, 16)) + 3 * (2 * lin(2, 16, 8) + lin(2, 8, 2)),
    # 20 frames, halved, then padded: 20 rows; 2 x 5 words
    "whisper": 2 * conv(2, 16, 20, 8 * 3) + 3 * (conv(2, 16, 10, 16 * 3) + layer(20, 16, 32))
    + 3 * (layer(10, 16, 32) + 2 * lin(10, 16, 16) + 2 * lin(20, 16, 16) + lin(10, 16, 40))
    + 3.5 * (att(2, 10, 10, 16) + att(2, 5, 5, 16) + att(2, 5, 10, 16)),
}  # fmt: skip
"""Name in the zoo -> FLOPs."""
