"""Small models that are divided between devices, each with something that a device map has to mind."""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.captures import Made
from tests.parts import through


def linears(count: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(8, 8) for _ in range(count))


def block() -> nn.Module:
    """A residual block: what it adds to its argument is its own."""
    return Made(lambda m, x: x + m.inner(m.norm(x)).relu(), norm=nn.LayerNorm(8), inner=nn.Linear(8, 8))


def blocks(count: int) -> nn.ModuleList:
    return nn.ModuleList(block() for _ in range(count))


def class_token() -> nn.Module:
    """Parameters of the model itself, as a vision transformer's."""

    def compute(m: Any, x: Tensor) -> Tensor:
        return through(m.blocks, torch.cat([m.token.expand(len(x), -1, -1), x], 1) + m.position)

    token, position = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(6, 8))
    return Made(compute, token=token, position=position, blocks=blocks(4))


def buffers() -> nn.Module:
    """A table of the model itself that is given to every block, and one that isn't saved."""

    def compute(m: Any, x: Tensor) -> Tensor:
        for part in m.blocks:
            x = part(x, m.table)
        return m.last(x) * m.scale

    scaled = nn.ModuleList(Made(lambda m, x, by: m.inner(x) * by, inner=nn.Linear(8, 8)) for _ in range(3))
    model = Made(compute, blocks=scaled, last=nn.Linear(8, 8))
    model.register_buffer("table", torch.rand(8))
    model.register_buffer("scale", torch.rand(8), persistent=False)
    return model


def residual() -> nn.Module:
    """Blocks that are added to their argument outside of them: they can't be apart."""

    def compute(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for part in m.blocks:
            x = x + part(x)
        return m.last(x)

    return Made(compute, first=nn.Linear(8, 8), blocks=linears(3), last=nn.Linear(8, 8))


def stack() -> nn.Module:
    """A module that is divided, and computes between its blocks: where, added to the argument; a mask for all."""

    def compute(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        x = x + m.where(torch.arange(x.shape[1], device=x.device))
        mask = mask * 2
        for part in m.blocks:
            x = part(x, mask=mask)
        return m.norm(x)  # type: ignore[no-any-return]

    masked = nn.ModuleList(Made(lambda m, x, mask: x + m.inner(x) * mask, inner=nn.Linear(8, 8)) for _ in range(3))
    body = Made(compute, where=nn.Embedding(5, 8), norm=nn.LayerNorm(8), blocks=masked)
    return Made(lambda m, x: m.head(m.body(x, x > 0)), body=body, head=nn.Linear(8, 8))


def unused() -> nn.Module:
    """Heads that this forward doesn't use, one of them in a stack that is not used at all."""
    idle = {"pooler": nn.Linear(8, 8), "decoder": blocks(2), "spare": nn.Parameter(torch.ones(3))}
    return Made(lambda m, x: m.head(through(m.blocks, x)), blocks=linears(3), head=nn.Linear(8, 2), **idle)


def scales() -> nn.Module:
    """Parameters in a list, which the model itself reads."""

    def compute(m: Any, x: Tensor) -> Tensor:
        for part, scale in zip(m.blocks, m.scale, strict=True):
            x = part(x) * scale
        return x

    return Made(compute, blocks=linears(3), scale=nn.ParameterList([nn.Parameter(torch.rand(8)) for _ in range(3)]))


def borrowed() -> nn.Module:
    """A weight that the model itself reads, not its module."""

    def compute(m: Any, words: Tensor) -> Tensor:
        return F.linear(through(m.blocks, m.embed(words)), m.embed.weight) + m.bias.bias  # type: ignore[no-any-return]

    return Made(compute, embed=nn.Embedding(12, 8), blocks=linears(3), bias=nn.Linear(8, 12))


def tied() -> nn.Module:
    """A head with the embedding's weight."""
    embed, head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
    head.weight = embed.weight
    return Made(lambda m, words: m.head(through(m.blocks, m.embed(words))), embed=embed, blocks=linears(3), head=head)


def shared_embedding() -> nn.Module:
    """One module under three names."""

    def encode(m: Any, words: Tensor) -> Tensor:
        return through(m.block, m.embed(words))

    shared = nn.Embedding(12, 8)
    coders = {name: Made(encode, embed=shared, block=blocks(2)) for name in ("encoder", "decoder")}
    mix = nn.Bilinear(8, 8, 8)
    return Made(lambda m, words: m.mix(m.encoder(words), m.decoder(words)), shared=shared, mix=mix, **coders)


def experts() -> nn.Module:
    """A gate whose outputs weigh those of experts."""

    def compute(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        gate = m.gate(x).softmax(-1)
        return sum(gate[..., i : i + 1] * expert(x) for i, expert in enumerate(m.experts))  # type: ignore[return-value]

    return Made(compute, first=nn.Linear(8, 8), experts=linears(2), gate=nn.Linear(8, 2))


def attention() -> nn.Module:
    """Blocks with attention, which read the weight of a module inside them."""

    def compute(m: Any, x: Tensor) -> Tensor:
        y = m.norm(x)
        return x + m.attend(y, y, y, need_weights=False)[0]  # type: ignore[no-any-return]

    def part() -> nn.Module:
        return Made(compute, norm=nn.LayerNorm(8), attend=nn.MultiheadAttention(8, 2, batch_first=True))

    return nn.Sequential(part(), part(), nn.Linear(8, 8))


def u_net() -> nn.Module:
    """Skips from the way down to the way up, inside of a module that holds all."""

    def compute(m: Any, x: Tensor) -> Tensor:
        skipped = m.down1(x)
        return m.last(m.up(torch.cat([skipped, m.down2(skipped)], -1))) + x  # type: ignore[no-any-return]

    net = Made(compute, down1=block(), down2=block(), up=nn.Linear(16, 8), last=nn.Linear(8, 8))
    return Made(lambda m, x: m.net(x), net=net)


def wrapped() -> nn.Module:
    """A stack with a parameter of its own between others."""
    position = nn.Parameter(torch.randn(8))
    inner = Made(lambda m, x: through(m.layers, x + m.position), position=position, layers=linears(3))

    def compute(m: Any, x: Tensor) -> Tensor:
        return through((*m.first, m.inner, *m.last), x)

    return Made(compute, first=linears(2), inner=inner, last=linears(2))


def peeks() -> nn.Module:
    """The last block reads a weight of the first one, which isn't inside it."""
    first = nn.Linear(8, 8)
    peek = Made(lambda m, x: F.linear(m.inner(x), m.others[0].weight), inner=nn.Linear(8, 8), others=[first])
    layers = nn.ModuleList([first, nn.Linear(8, 8), nn.Linear(8, 8), peek])
    return Made(lambda m, x: through(m.blocks, x), blocks=layers)


def changing(compute: Callable[..., Any]) -> nn.Module:
    """Three blocks with a layer of their own and this forward."""
    return nn.ModuleList(Made(compute, inner=nn.Linear(8, 8)) for _ in range(3))


def stream() -> nn.Module:
    """Blocks that add to their argument in place."""

    def compute(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        for part in m.blocks:
            part(x)
        return through(m.last, x)

    blocks = changing(lambda m, x: x.add_(m.inner(x)))
    return Made(compute, first=nn.Linear(8, 8), blocks=blocks, last=linears(3))


def activations_in_place() -> nn.Module:
    """Blocks that begin with an activation in place of what nobody reads later: they can be apart."""
    blocks = changing(lambda m, x: m.inner(F.relu_(x)))
    return Made(lambda m, x: through(m.blocks, m.first(x)), first=nn.Linear(8, 8), blocks=blocks)


def given_back() -> nn.Module:
    """A module returns its argument; the model changes it, and reads the tensor that it has given."""

    def compute(m: Any, x: Tensor) -> Tensor:
        x = m.first(x)
        same, more = m.middle(x)
        same.mul_(2)
        return m.last(x) + more  # type: ignore[no-any-return]

    middle = Made(lambda m, x: (x, m.inner(x)), inner=nn.Linear(8, 8))
    return Made(compute, first=nn.Linear(8, 8), middle=middle, last=nn.Linear(8, 8))


def adapters() -> nn.Module:
    """Adapters that keep the layer that they extend in a list, so that it isn't theirs."""
    layers = linears(3)
    added = nn.ModuleList(
        Made(lambda m, x: m.kept[0](x) + m.own(x), kept=[layer], own=nn.Linear(8, 8, bias=False)) for layer in layers
    )
    return Made(lambda m, x: through(m.adapters, x), layers=layers, adapters=added)


def far_norm() -> nn.Module:
    """Blocks that call one norm of the model, and one activation, which has no tensors."""
    norm, act = nn.LayerNorm(8), nn.GELU()

    def part(*kept: nn.Module) -> nn.Module:
        return Made(lambda m, x: x + through(m.kept, m.inner(x)), kept=kept, inner=nn.Linear(8, 8))

    first, last = (nn.ModuleList(part(*kept) for _ in range(3)) for kept in ((act,), (norm, act)))
    return Made(lambda m, x: m.act(through((*m.first, *m.last), x)), first=first, last=last, norm=norm, act=act)


def one_activation() -> nn.Module:
    """Blocks that all have the same activation as a part."""
    act = nn.GELU()

    def part() -> nn.Module:
        return Made(lambda m, x: m.act(m.inner(x)), inner=nn.Linear(8, 8), act=act)

    return Made(lambda m, x: m.blocks[2](x + m.blocks[1](m.blocks[0](x))), blocks=nn.ModuleList(part() for _ in "123"))


def hooked() -> nn.Module:
    """Layers whose hooks add the argument, which accelerate doesn't move for hooks."""
    first, last = linears(3), linears(3)
    for layer in first:
        layer.register_forward_hook(lambda m, arguments, output: output + arguments[0])
    return Made(lambda m, x: through((*m.first, *m.last), x), first=first, last=last)


def u_turn() -> nn.Module:
    """Blocks that leave what they return on a stack, which the blocks behind them take: the first gets it twice."""

    def push(m: Any, x: Tensor, left: Any) -> Tensor:
        left.append(x := m.inner(x))
        return x

    def pop(m: Any, x: Tensor, left: Any) -> Tensor:
        return m.inner(x) + left.pop()  # type: ignore[no-any-return]

    def model(m: Any, x: Tensor) -> Tensor:
        left = deque[Tensor]()
        for block in m.blocks:
            x = block(x, left)
        return m.last(x)  # type: ignore[no-any-return]

    blocks = nn.ModuleList(Made(compute, inner=nn.Linear(8, 8)) for compute in (push, push, push, pop, pop, pop))
    return Made(model, blocks=blocks, last=nn.Linear(8, 8))


def notes() -> nn.Module:
    """Blocks that write into a dictionary that they are given, of which accelerate gives them copies."""

    def compute(m: Any, x: Tensor, notes: dict[str, Tensor]) -> Tensor:
        notes["sum"] = notes["sum"] + (x := m.inner(x)).mean()
        return x

    def model(m: Any, x: Tensor) -> Tensor:
        notes = {"sum": x.new_zeros(())}
        for block in m.blocks:
            x = block(x, notes)
        return x + notes["sum"]

    return Made(model, blocks=changing(compute))


def states() -> nn.Module:
    """Blocks that change the dictionary that they are given, and return it."""

    def compute(m: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
        state["x"] = m.inner(state["x"])
        return state

    return Made(lambda m, x: through(m.blocks, {"x": x})["x"], blocks=changing(compute))  # type: ignore[arg-type]


def passed() -> nn.Module:
    """Norms in a list that is an argument: accelerate moves all of them to the device of the module that gets it."""

    def part() -> nn.Module:
        return Made(lambda m, x, norms: norms[0](m.inner(x)), inner=nn.Linear(8, 8))

    norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
    return Made(lambda m, x: m.last(m.norms[2](m.one(x, m.norms))), norms=norms, one=part(), last=nn.Linear(8, 8))


def grandchildren() -> nn.Module:
    """The model itself calls what is deep inside its parts."""
    parts = nn.ModuleList(nn.ModuleDict({"deep": nn.ModuleDict({"layer": nn.Linear(8, 8)})}) for _ in range(4))
    return Made(lambda m, x: through([part["deep"]["layer"] for part in m.parts], x), parts=parts)


MODELS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        class_token, buffers, residual, stack, unused, scales, borrowed, tied, shared_embedding, experts, attention,
        u_net, wrapped, peeks, stream, activations_in_place, given_back, adapters, far_norm, one_activation, hooked,
        u_turn, notes, states, passed, grandchildren,
    )
}  # fmt: skip
WORDS = {"borrowed", "tied", "shared_embedding"}
UNDIVIDED = {"scales", "given_back", "notes"}
"""Models that can't be on two devices: an op reads what several of their modules give, or a copy would be changed."""
