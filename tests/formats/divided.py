"""Small models that are divided between devices, each with something that a device map has to mind."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.parts import Parts, through


def linears(count: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(8, 8) for _ in range(count))


class Block(nn.Module):
    """A residual block: what it adds to its argument is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x)).relu()


class ClassToken(nn.Module):
    """Parameters of the model itself, as a vision transformer's."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(6, 8))
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return through(self.blocks, x)


class Buffers(nn.Module):
    """A table of the model itself that is given to every block, and one that isn't saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.rand(8))
        self.register_buffer("scale", torch.rand(8), persistent=False)
        self.blocks, self.last = nn.ModuleList(Scaled(inner=nn.Linear(8, 8)) for _ in range(3)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.table)
        return self.last(x) * self.scale


class Scaled(Parts):
    """Scales by its argument."""

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return self.inner(x) * by


class Residual(nn.Module):
    """Blocks that are added to their argument outside of them: they can't be apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(8, 8), linears(3), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


class Inner(nn.Module):
    """A stack with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.position, self.layers = nn.Parameter(torch.randn(8)), linears(3)

    def forward(self, x: Tensor) -> Tensor:
        return through(self.layers, x + self.position)


class Stack(nn.Module):
    """A module that is divided, and computes between its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x, x > 0))


class Body(nn.Module):
    """An embedding of where, added to the argument, then blocks that all read a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.norm = nn.Embedding(5, 8), nn.LayerNorm(8)
        self.blocks = nn.ModuleList(Masked(inner=nn.Linear(8, 8)) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.where(torch.arange(x.shape[1], device=x.device))
        mask = mask * 2
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.norm(x)


class Masked(Parts):
    """A block with a mask."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.inner(x) * mask


class Unused(nn.Module):
    """Heads that this forward doesn't use, one of them in a stack that is not used at all."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.pooler, self.head = linears(3), nn.Linear(8, 8), nn.Linear(8, 2)
        self.decoder, self.spare = nn.ModuleList(Block() for _ in range(2)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(through(self.blocks, x))


class Scales(nn.Module):
    """Parameters in a list, which the model itself reads."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.scale = linears(3), nn.ParameterList([nn.Parameter(torch.rand(8)) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for block, scale in zip(self.blocks, self.scale, strict=True):
            x = block(x) * scale
        return x


class Borrowed(nn.Module):
    """A weight that the model itself reads, not its module."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.bias = nn.Embedding(12, 8), linears(3), nn.Linear(8, 12)

    def forward(self, words: Tensor) -> Tensor:
        x = through(self.blocks, self.embed(words))
        return F.linear(x, self.embed.weight) + self.bias.bias


class Tied(nn.Module):
    """A head with the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(12, 8), linears(3), nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(through(self.blocks, self.embed(words)))


class Encoder(nn.Module):
    """Embeds by a module that it is given."""

    def __init__(self, embed: nn.Embedding) -> None:
        super().__init__()
        self.embed, self.block = embed, nn.ModuleList(Block() for _ in range(2))

    def forward(self, words: Tensor) -> Tensor:
        return through(self.block, self.embed(words))


class SharedEmbedding(nn.Module):
    """One module under three names."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.mix = nn.Embedding(12, 8), nn.Bilinear(8, 8, 8)
        self.encoder, self.decoder = Encoder(self.shared), Encoder(self.shared)

    def forward(self, words: Tensor) -> Tensor:
        return self.mix(self.encoder(words), self.decoder(words))


class Twice(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mid = nn.Linear(8, 8), linears(2)
        self.dec = self.enc

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(self.mid[1](self.mid[0](self.enc(x))))


class Experts(nn.Module):
    """A gate whose outputs weigh those of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.experts, self.gate = nn.Linear(8, 8), linears(2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        gate = self.gate(x).softmax(-1)
        return sum(gate[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))  # type: ignore[return-value]


class SelfAttention(nn.Module):
    """A block with attention, which reads the weight of a module inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attend(y, y, y, need_weights=False)[0]


class Attention(nn.Sequential):
    """Blocks with attention."""

    def __init__(self) -> None:
        super().__init__(SelfAttention(), SelfAttention(), nn.Linear(8, 8))


class UNet(nn.Module):
    """Skips from the way down to the way up, inside of a module that holds all."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Skips(down1=Block(), down2=Block(), up=nn.Linear(16, 8), last=nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Skips(Parts):
    """A small U-Net."""

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.down1(x)
        return self.last(self.up(torch.cat([skipped, self.down2(skipped)], -1))) + x


class Wrapped(nn.Module):
    """A stack with a parameter of its own between others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = linears(2), Inner(), linears(2)

    def forward(self, x: Tensor) -> Tensor:
        return through((*self.first, self.inner, *self.last), x)


class Peek(nn.Module):
    """A block that reads the weight of a module that isn't inside it."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.inner, self.others = nn.Linear(8, 8), [other]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.inner(x), self.others[0].weight)


class Peeks(nn.Module):
    """The last block reads a weight of the first one."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([first, nn.Linear(8, 8), nn.Linear(8, 8), Peek(first)])

    def forward(self, x: Tensor) -> Tensor:
        return through(self.blocks, x)


def hugging_face() -> dict[str, Callable[[], nn.Module]]:
    """Small models of the library, if it is installed."""
    try:
        import transformers as hf
    except ImportError:
        return {}
    sizes: dict[str, Any] = {"vocab_size": 12, "use_cache": False}
    llama = hf.LlamaConfig(
        num_hidden_layers=3, hidden_size=16, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2, **sizes
    )
    gpt2 = hf.GPT2Config(n_layer=3, n_embd=16, n_head=2, n_positions=16, **sizes)
    t5 = hf.T5Config(num_layers=2, d_model=16, d_ff=32, num_heads=2, d_kv=8, decoder_start_token_id=0, **sizes)
    return {
        "Llama": lambda: hf.LlamaForCausalLM(llama),
        "GPT2": lambda: hf.GPT2LMHeadModel(gpt2),
        "T5": lambda: hf.T5ForConditionalGeneration(t5),
    }


MODELS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        ClassToken, Buffers, Residual, Stack, Unused, Scales, Borrowed, Tied, SharedEmbedding, Twice, Experts,
        Attention, UNet, Wrapped, Peeks,
    )
}  # fmt: skip
WORDS = {"Borrowed", "Tied", "SharedEmbedding"}
UNDIVIDED = {"Scales"}
"""Models that can't be on two devices: an op reads what several of their modules give."""
