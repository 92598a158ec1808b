"""The models behind published step times, with the shapes of torchvision's and transformers' models of those names.

Written compactly: layers of convolutions from tables, transformers with the attention that is written out, as it was
when these times were measured. `MODELS` has what builds each, on the default device.

Legend: B batch, T words, H units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.bert import Network as BertNetwork
from graphs.bert import training_step as bert_step
from graphs.convolution import classification_step
from graphs.inception_v3 import Network as InceptionNetwork
from graphs.inception_v3 import training_step as inception_step
from graphs.training_step import TrainingStep


class ConvNorm(nn.Sequential):
    """Convolution, batch norm and an activation; torchvision's order."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, after: nn.Module | None = None
    ) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.Identity() if after is None else after)


class Residual(nn.Module):
    """Layers beside a shortcut, and an activation behind their sum."""

    def __init__(self, layers: nn.Module, shortcut: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.layers, self.shortcut, self.activation = layers, shortcut, activation

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H', W')."""
        return self.activation(self.layers(x) + self.shortcut(x))


def residual(inputs: int, width: int, outputs: int, stride: int, groups: int) -> nn.Module:
    """A block of ResNet or ResNeXt: a bottleneck, or, where the width is the outputs', two convolutions."""
    if width == outputs and groups == 1:
        layers = [ConvNorm(inputs, width, 3, stride, 1, nn.ReLU()), ConvNorm(width, outputs, 3)]
    else:
        layers = [ConvNorm(inputs, width, 1, 1, 1, nn.ReLU()), ConvNorm(width, width, 3, stride, groups, nn.ReLU())]
        layers.append(ConvNorm(width, outputs, 1))
    same = inputs == outputs and stride == 1
    return Residual(nn.Sequential(*layers), nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride), nn.ReLU())


def resnet(
    counts: Sequence[int], bottleneck: bool = True, groups: int = 1, width: int = 64, small: bool = False
) -> nn.Module:
    """ResNet and ResNeXt (He et al. 2016; Xie et al. 2017); `small` for images of 32 x 32 and ten classes."""
    stem: list[nn.Module] = [ConvNorm(3, 64, 3 if small else 7, 1 if small else 2, 1, nn.ReLU())]
    layers: list[nn.Module] = stem if small else [*stem, nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(counts):
        for block in range(count):
            outputs = (256 if bottleneck else 64) * 2**stage
            inner = groups * width * 2**stage if groups > 1 else 64 * 2**stage
            layers.append(residual(inputs, inner, outputs, 2 if stage and not block else 1, groups))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10 if small else 1000))


def plain(layers: str, head: Sequence[nn.Module]) -> nn.Module:
    """Convolutions with bias as ``inputs-outputs-kernel-stride-padding``, "M" for pooling by 2, "P" for 3 by 2."""
    made: list[nn.Module] = []
    for layer in layers.split():
        if layer in "MP":
            made.append(nn.MaxPool2d(2 if layer == "M" else 3, 2, ceil_mode=layer == "P" and not head))
        elif layer[0] == "f":
            made.append(Fire(*map(int, layer[1:].split("-"))))
        else:
            inputs, outputs, kernel, stride, padding = map(int, layer.split("-"))
            made += [nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU()]
    return nn.Sequential(*made, *head)


class Fire(nn.Module):
    """SqueezeNet's module (Iandola et al. 2016): 1 x 1, then 1 x 1 beside 3 x 3."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(inputs, squeezed, 1), nn.ReLU())
        self.one = nn.Sequential(nn.Conv2d(squeezed, expanded, 1), nn.ReLU())
        self.three = nn.Sequential(nn.Conv2d(squeezed, expanded, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, 2 expanded, H, W)."""
        x = self.squeeze(x)
        return torch.cat([self.one(x), self.three(x)], 1)


def vgg16() -> nn.Module:
    """Simonyan and Zisserman 2015."""
    channels, layers = 3, ""
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += f" {channels}-{width}-3-1-1"
            channels = width
        layers += " M"
    return plain(layers, _dense(25088, 4096))


def alexnet() -> nn.Module:
    """Krizhevsky 2014, as torchvision has it."""
    layers = "3-64-11-4-2 P 64-192-5-1-2 P 192-384-3-1-1 384-256-3-1-1 256-256-3-1-1 P"
    return plain(layers, _dense(9216, 4096))


def _dense(inputs: int, width: int) -> list[nn.Module]:
    hidden = [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(), nn.Linear(width, width), nn.ReLU(), nn.Dropout()]
    return [nn.Flatten(), *hidden, nn.Linear(width, 1000)]


def squeezenet() -> nn.Module:
    """SqueezeNet 1.0."""
    fires = "f96-16-64 f128-16-64 f128-32-128 P f256-32-128 f256-48-192 f384-48-192 f384-64-256 P f512-64-256"
    body = plain(f"3-96-7-2-0 P {fires}", [])
    return nn.Sequential(body, nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class DenseLayer(nn.Module):
    """DenseNet's layer (Huang et al. 2017): its input, and 32 channels more."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), ConvNorm(inputs, 128, 1, 1, 1, nn.ReLU()),
            nn.Conv2d(128, 32, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: list[Tensor]) -> list[Tensor]:
        """All tensors of the block so far."""
        return [*x, self.layers(torch.cat(x, 1))]


class DenseBlock(nn.Module):
    """Layers that each read all before them."""

    def __init__(self, inputs: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DenseLayer(inputs + 32 * i) for i in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, inputs + 32 layers, H, W)."""
        tensors = [x]
        for layer in self.layers:
            tensors = layer(tensors)
        return torch.cat(tensors, 1)


def densenet121() -> nn.Module:
    """DenseNet-121."""
    layers: list[nn.Module] = [ConvNorm(3, 64, 7, 2, 1, nn.ReLU()), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for block, count in enumerate((6, 12, 24, 16)):
        layers.append(DenseBlock(channels, count))
        channels += 32 * count
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if block < 3:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class SqueezeExcite(nn.Module):
    """Scales of channels from their means (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the same."""
        return x * self.scale(x)


def efficientnet_b0() -> nn.Module:
    """Tan and Le 2019."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2, 1, nn.SiLU())]
    inputs = 32
    stages = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
              (6, 5, 2, 192, 4), (6, 3, 1, 320, 1))  # fmt: skip
    for expand, kernel, stride, outputs, count in stages:
        for number in range(count):
            wide, step = inputs * expand, 1 if number else stride
            block: list[nn.Module] = [ConvNorm(inputs, wide, 1, 1, 1, nn.SiLU())] if expand > 1 else []
            block += [ConvNorm(wide, wide, kernel, step, wide, nn.SiLU()), SqueezeExcite(wide, max(1, inputs // 4))]
            body = nn.Sequential(*block, ConvNorm(wide, outputs, 1))
            same = inputs == outputs and step == 1
            layers.append(Residual(body, nn.Identity(), nn.Identity()) if same else body)
            inputs = outputs
    layers += [ConvNorm(inputs, 1280, 1, 1, 1, nn.SiLU()), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(1280, 1000))


@dataclass(frozen=True)
class Sizes:
    """Of a transformer."""

    layers: int
    width: int  # H
    heads: int
    words: int
    kind: str = "bert"  # or "gpt2", "opt": what comes first, activation and masks


class Attention(nn.Module):
    """Attention written out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.fused = sizes.heads, sizes.kind == "gpt2"
        parts = 1 if self.fused else 3
        self.inputs = nn.ModuleList([nn.Linear(sizes.width, sizes.width * 3 // parts) for _ in range(parts)])
        self.output, self.dropout = nn.Linear(sizes.width, sizes.width), nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, H), mask (T, T) -> (B, T, H)."""
        made = [layer(x) for layer in self.inputs]
        parts = made[0].chunk(3, -1) if self.fused else made
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        if self.fused:
            scores = torch.where(mask > 0, scores, -1e4)
        attended = self.dropout((scores + mask).softmax(-1)) @ value
        return self.output(attended.transpose(1, 2).flatten(2))


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's GELU, op by op as in transformers."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"bert": F.gelu, "gpt2": gelu_new, "opt": F.relu}


class TransformerLayer(nn.Module):
    """Attention and two dense layers, norms behind (BERT) or before (GPT-2, OPT) them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes, self.attention = sizes, Attention(sizes)
        self.activation = ACTIVATIONS[sizes.kind]
        self.up, self.down = nn.Linear(sizes.width, 4 * sizes.width), nn.Linear(4 * sizes.width, sizes.width)
        self.norms, self.dropout = nn.ModuleList([nn.LayerNorm(sizes.width) for _ in range(2)]), nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        if self.sizes.kind == "bert":
            x = self.norms[0](x + self.dropout(self.attention(x, mask)))
            return self.norms[1](x + self.dropout(self.down(self.activation(self.up(x)))))
        x = x + self.dropout(self.attention(self.norms[0](x), mask))
        return x + self.dropout(self.down(self.activation(self.up(self.norms[1](x)))))


class Transformer(nn.Module):
    """Embeddings, layers, and the logits of all words, or of the two ends of an answer."""

    def __init__(self, sizes: Sizes, length: int, answers: bool = False) -> None:
        super().__init__()
        width, self.length = sizes.width, length
        self.word, self.position = nn.Embedding(sizes.words, width), nn.Embedding(2048, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.layers = nn.ModuleList([TransformerLayer(sizes) for _ in range(sizes.layers)])
        self.first, self.answers = sizes.kind == "bert", answers
        transform = [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)] if self.first and not answers else []
        self.head = nn.Sequential(*transform, nn.Linear(width, 2 if answers else sizes.words, bias=False))

    def forward(self, words: Tensor) -> Tensor:
        """(B, T) -> logits (B * T, words), or (2 * B, T)."""
        x = self.word(words) + self.position(torch.arange(self.length, device=words.device))
        x, mask = self.dropout(self.norm(x) if self.first else x), x.new_zeros(self.length, self.length)
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.head(x if self.first else self.norm(x))
        return torch.cat(logits.unbind(-1)) if self.answers else logits.flatten(0, 1)


class WordLstm(nn.Module):
    """A language model of two LSTM layers on Wikitext-2 (Gavel's, of PyTorch's examples)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.dropout = nn.Embedding(33_278, 200), nn.Dropout(0.2)
        self.lstm, self.head = nn.LSTM(200, 200, 2, dropout=0.2), nn.Linear(200, 33_278)

    def forward(self, words: Tensor) -> Tensor:
        """(T, B) -> (T * B, words)."""
        return self.head(self.dropout(self.lstm(self.dropout(self.words(words)))[0])).flatten(0, 1)


def images(make: Callable[[], nn.Module], resolution: int, batch: int) -> TrainingStep:
    """A training step of a classifier of images."""
    return classification_step(make(), batch, resolution)


def language(sizes: Sizes, length: int, batch: int) -> TrainingStep:
    """A training step that predicts every word."""
    words = torch.zeros(batch, length, dtype=torch.long)
    return TrainingStep(Transformer(sizes, length), (words,), (words.flatten(),), F.cross_entropy)


def answering(sizes: Sizes, batch: int) -> TrainingStep:
    """A step of fine-tuning on SQuAD, 384 words."""
    words, ends = torch.zeros(batch, 384, dtype=torch.long), torch.zeros(2 * batch, dtype=torch.long)
    return TrainingStep(Transformer(sizes, 384, answers=True), (words,), (ends,), F.cross_entropy)


def word_lstm(batch: int) -> TrainingStep:
    """A training step on 35 words."""
    words = torch.zeros(35, batch, dtype=torch.long)
    return TrainingStep(WordLstm(), (words,), (torch.zeros(35 * batch, dtype=torch.long),), F.cross_entropy)


LARGE, BASE = Sizes(24, 1024, 16, 30_522), Sizes(12, 768, 12, 30_522)
MODELS: dict[str, Callable[[int], TrainingStep]] = {
    "resnet18": partial(images, partial(resnet, (2, 2, 2, 2), bottleneck=False), 224),
    "resnet18c": partial(images, partial(resnet, (2, 2, 2, 2), bottleneck=False, small=True), 32),
    "resnet50": partial(images, partial(resnet, (3, 4, 6, 3)), 224),
    "resnet101": partial(images, partial(resnet, (3, 4, 23, 3)), 224),
    "resnext50_32x4d": partial(images, partial(resnet, (3, 4, 6, 3), groups=32, width=4), 224),
    "resnext101_32x4d": partial(images, partial(resnet, (3, 4, 23, 3), groups=32, width=4), 224),
    "vgg16": partial(images, vgg16, 224),
    "alexnet": partial(images, alexnet, 224),
    "squeezenet1_0": partial(images, squeezenet, 224),
    "densenet121": partial(images, densenet121, 224),
    "efficientnet_b0": partial(images, efficientnet_b0, 224),
    "inception_v3": lambda batch: inception_step(InceptionNetwork(batch)),
    "bert_large_T512": partial(language, LARGE, 512),
    "gpt2_large_T1024": partial(language, Sizes(36, 1280, 20, 50_257, "gpt2"), 1024),
    "gpt3_xl_T2048": partial(language, Sizes(24, 3072, 24, 50_257, "gpt2"), 2048),
    "gpt3_27_T2048": partial(language, Sizes(32, 2560, 32, 50_257, "gpt2"), 2048),
    "opt_13_T2048": partial(language, Sizes(24, 2048, 32, 50_272, "opt"), 2048),
    "squad_large": partial(answering, LARGE),
    "squad_base": partial(answering, BASE),
    "bertpre_T128": lambda batch: bert_step(BertNetwork(24, 1024, 128, batch)),
    "lm": word_lstm,
}
"""By the name in the table of steps: a step of it at a batch size."""


def training_step(name: str) -> TrainingStep:
    """The step that a name such as "resnet50_b128" stands for, on "meta".

    Raises:
        KeyError: there is no such model.
    """
    model, batch = re.fullmatch(r"(.*)_b(\d+)", name).groups()  # type: ignore[union-attr]
    with torch.device("meta"):
        return MODELS[model](int(batch))
