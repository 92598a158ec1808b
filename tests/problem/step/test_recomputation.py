"""Recomputed blocks: the graph of a step is that of a capture under activation checkpoints."""

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from placeto.capture import capture_training
from placeto.errors import PlanError
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.problem.step.recomputation import RECOMPUTATION, recomputable, recomputed
from placeto.simulator.schedule import Schedule, simulate
from tests.capture.steps import Step
from tests.capture.zoo import ZOO
from tests.captures import Made, chained, linears, square

MODELS = "llama", "resnet", "swin", "t5", "transformer"
CLUSTER = load_cluster("2xv100")


def captured(step: Step, count: int, blocks: tuple[str, ...] = (), **options: str | bool) -> ComputationGraph:
    """The step in micro-batches, with activation checkpoints of torch around the calls of these modules."""
    module = copy.deepcopy(step.module)
    for path in blocks:
        block = module.get_submodule(path)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return capture_training(module, step.inputs, step.loss, targets=step.targets, micro_batches=count, **options)


def ops_of(graph: ComputationGraph) -> list[tuple[str, str, str, int]]:
    return [*zip(graph.modules, graph.op_types, graph.passes, graph.micro_batches.tolist(), strict=True)]


def on_one(graph: ComputationGraph, dispatch: str) -> Schedule:
    return simulate(PlacementProblem(graph, CLUSTER, dispatch=dispatch), np.zeros(graph.num_ops, np.int64))


def assert_like_torch(
    graph: ComputationGraph, theirs: ComputationGraph, casts: bool = False, memory: float = 1e-3
) -> None:
    """The same ops in the same order, the same time, and the same memory to 0.1 %.

    Under autocast, copies of weights in 16 bits are made elsewhere in the order, and are kept a little longer.
    """
    assert sorted(ops_of(graph)) == sorted(ops_of(theirs))
    assert casts or ops_of(graph) == ops_of(theirs)
    for dispatch in ("list", "priority"):
        mine, other = on_one(graph, dispatch), on_one(theirs, dispatch)
        assert mine.makespan_us == pytest.approx(other.makespan_us, rel=1e-9)
        assert mine.peak_memory[0] == pytest.approx(other.peak_memory[0], rel=0.03 if casts else memory)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in MODELS if name in ZOO])
def test_models_are_recomputed_as_torch_does(name: str) -> None:
    graph = captured(step := ZOO[name].make(), 2)
    blocks = recomputable(graph)
    assert blocks, name
    # where a block has several inputs, all are held as long as the one that is needed last
    assert_like_torch(recomputed(graph, blocks), captured(step, 2, blocks), memory=3e-3)


class Block(nn.Module):
    """A block with a norm, a gate that is drawn, and what came in."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.dropout(nn.functional.gelu(self.up(self.norm(x)))))


def stack(dropout: float = 0.0) -> Step:
    return Step(nn.Sequential(*(Block(dropout) for _ in range(4))), [torch.randn(64, 64)], square)


@pytest.mark.parametrize(
    ("count", "precision", "dropout"), [(1, "fp32", 0.1), (4, "fp32", 0.0), (1, "bf16", 0.0), (4, "bf16", 0.1)]
)
def test_some_blocks_are_recomputed_as_torch_does(count: int, precision: str, dropout: float) -> None:
    graph, blocks = captured(stack(dropout), count, precision=precision), ("0", "2")
    assert recomputable(graph) == ("0", "1", "2", "3")
    mine = recomputed(graph, blocks)
    assert_like_torch(mine, captured(stack(dropout), count, blocks, precision=precision), precision == "bf16")
    assert recomputable(mine) == ("1", "3")
    whole, cut = (layers(PlacementProblem(each, CLUSTER), False) for each in (graph, mine))
    assert cut.crossing.tolist() == whole.crossing.tolist()
    assert cut.number[[mine.index[name] for name in graph.op_names]].tolist() == whole.number.tolist()
    before, after = on_one(graph, "list"), on_one(mine, "list")
    assert after.peak_memory[0] < before.peak_memory[0]
    assert after.makespan_us > before.makespan_us


class Adapted(Block):
    """A frozen block beside two small trained layers."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.requires_grad_(False)
        self.small, self.back = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.back(self.small(x))


class Experts(nn.Module):
    """Gated layers, whose outputs are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(64, 3), nn.ModuleList(linears(3, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.gate(x).softmax(-1)
        outputs = [share[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)]
        return x + outputs[0] + outputs[1] + outputs[2]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("block", [Adapted, Experts])
def test_a_block_runs_again_as_far_as_torch_runs_it(block: type[nn.Module], count: int) -> None:
    """That is, up to the last tensor that is saved, with what no saved tensor depends on."""
    step = Step(nn.Sequential(nn.Linear(64, 64), *(block() for _ in range(3))), [torch.randn(64, 64)], square)
    graph = captured(step, count)
    assert recomputable(graph) == ("1", "2", "3")
    for blocks in (("1", "3"), ("1", "2", "3")):
        assert_like_torch(recomputed(graph, blocks), captured(step, count, blocks))


LAST: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "neg": lambda h, y: y + -h,
    "cat": lambda h, y: torch.cat([h, y]),
    "stack": lambda h, y: torch.stack([h, y]),
    "clone": lambda h, y: y + h.clone(),
    "_to_copy": lambda h, y: y.double() + h.double(),
    "sum": lambda h, y: y + h.sum(0),
    "mean": lambda h, y: y + h.mean(0),
}
"""Functions of two tensors, by an op whose backward pass reads none of them."""


@pytest.mark.parametrize("op", LAST)
def test_a_block_ends_before_ops_that_save_nothing(op: str) -> None:
    def block(made: Made, x: torch.Tensor) -> torch.Tensor:
        a, b = made.inner(x).chunk(2, 1)
        h = (a * b).tanh()
        return LAST[op](h, h.sin())

    step = Step(nn.Sequential(nn.Linear(8, 8), Made(block, inner=nn.Linear(8, 8))), [torch.randn(8, 8)], square)
    graph = recomputed(captured(step, 2), ("1",))
    assert f"aten.{op}" in graph.op_types
    assert_like_torch(graph, captured(step, 2, ("1",)))
    split = [f"1{call}/split{again}" for call in ("", "@1") for again in ("", "/again")]
    whole = [name.replace("1", "1.inner", 1).replace("split", "addmm") for name in split]
    groups = [[graph.colocation[graph.index[name]] for name in names] for names in (split, whole)]
    assert groups[0] == groups[1]
    assert min(groups[0]) >= 0
    assert len(set(groups[0])) == 4, "copies are together, without what they are copies of"


def test_an_input_of_two_blocks_is_kept_for_the_one_that_needs_it_last() -> None:
    def forward(made: Made, x: torch.Tensor) -> torch.Tensor:
        side = made.side(x)
        for block in made.blocks:
            x = block(x, side)
        return x

    blocks = nn.ModuleList(Made(lambda made, x, side: made.inner(x + side).tanh(), inner=nn.Linear(8, 8)) for _ in "01")
    step = Step(Made(forward, side=nn.Linear(8, 8), blocks=blocks), [torch.randn(8, 8)], square)
    paths = ("blocks.0", "blocks.1")
    graphs = recomputed(captured(step, 1), paths), captured(step, 1, paths)
    kept = [each.held_until[each.output_ptr[each.index["side/addmm"]]] for each in graphs]
    assert [each.modules[op] for each, op in zip(graphs, kept, strict=True)] == ["blocks.0.inner"] * 2


def test_what_a_block_makes_is_kept_as_the_input_of_the_next() -> None:
    step = Step(
        nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)), nn.Linear(64, 64)), [], square
    )
    step = step._replace(inputs=[torch.randn(64, 64)])
    graph, blocks = captured(step, 2), ("0", "1", "2", "3")
    assert_like_torch(recomputed(graph, blocks), captured(step, 2, blocks))


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with norms."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


def u_net() -> nn.Module:
    """A U-Net whose levels have names."""

    def forward(made: Made, x: torch.Tensor) -> torch.Tensor:
        first = made.enc1(x)
        second = made.enc2(made.pool(first))
        third = made.bottom(made.pool(second))
        second = made.dec2(torch.cat([second, made.up2(third)], 1))
        return made.out(made.dec1(torch.cat([first, made.up1(second)], 1)))

    levels = {"enc1": double(3, 8), "enc2": double(8, 16), "bottom": double(16, 32)}
    levels |= {"dec2": double(32, 16), "dec1": double(16, 8)}
    ups = {"up2": nn.ConvTranspose2d(32, 16, 2, 2), "up1": nn.ConvTranspose2d(16, 8, 2, 2)}
    return Made(forward, pool=nn.MaxPool2d(2), out=nn.Conv2d(8, 1, 1), **levels, **ups)


def in_turn(names: tuple[str, ...], **parts: nn.Module) -> nn.Module:
    """A module that calls some of its parts one after the other."""

    def forward(made: Made, x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = made.get_submodule(name)(x)
        return x

    return Made(forward, **parts)


def blocks_of(names: str) -> dict[str, nn.Module]:
    return {name: Block(0.0) for name in names}


NAMED = {
    "U-Net": (u_net, ("enc1", "enc2", "bottom", "dec2", "dec1")),
    "U-Net in a module": (lambda: in_turn(("net",), net=u_net()), tuple(
        f"net.{name}" for name in ("enc1", "enc2", "bottom", "dec2", "dec1")
    )),
    "attributes": (lambda: in_turn(("a", "b", "c"), **blocks_of("abc")), ("a", "b", "c")),
    "dictionary": (
        lambda: in_turn(("layers.a", "layers.b", "head"), layers=nn.ModuleDict(blocks_of("ab")), head=nn.Linear(64, 3)),
        ("layers.a", "layers.b"),
    ),
    "lists in a dictionary": (
        lambda: in_turn(
            ("parts.a.0", "parts.a.1", "parts.b.0"),
            parts=nn.ModuleDict({"a": nn.ModuleList(blocks_of("ab").values()), "b": nn.ModuleList([Block(0.0)])}),
        ),
        ("parts.a.0", "parts.a.1", "parts.b.0"),
    ),
}  # fmt: skip
"""Makes a model, and its blocks."""


@pytest.mark.parametrize("name", NAMED)
def test_blocks_with_names_are_recomputed_as_torch_does(name: str) -> None:
    make, blocks = NAMED[name]
    inputs = torch.randn(4, 3, 16, 16) if "U-Net" in name else torch.randn(64, 64)
    torch.manual_seed(0)
    step = Step(make(), [inputs], square)
    for count in (1, 2):
        graph = captured(step, count)
        assert recomputable(graph) == blocks
        assert_like_torch(recomputed(graph, blocks), captured(step, count, blocks))


def test_a_large_block_is_divided_and_a_small_one_is_none() -> None:
    large = in_turn(("a", "b", "c"), **blocks_of("abc"))
    small = nn.Sequential(nn.Linear(64, 4), nn.GELU(), nn.Linear(4, 64))
    parts = {"large": large, "small": small, "single": Block(0.0)}
    graph = captured(Step(in_turn(("large", "small", "single"), **parts), [torch.randn(64, 64)], square), 1)
    assert recomputable(graph) == ("large.a", "large.b", "large.c", "single")


def test_lists_in_lists_are_no_blocks() -> None:
    blocks = nn.ModuleList(nn.ModuleList(Block(0.0) for _ in range(2)) for _ in range(2))
    model = Made(
        lambda made, x: made.blocks[1][1](made.blocks[1][0](made.blocks[0][1](made.blocks[0][0](x)))), blocks=blocks
    )
    graph = captured(Step(model, [torch.randn(64, 64)], square), 1)
    assert recomputable(graph) == ("blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1")


def test_a_sequential_of_layers_in_a_list_is_a_block_and_one_of_blocks_is_none() -> None:
    stages = [linears(3, 64), nn.Sequential(Block(0.0), Block(0.0)), nn.Linear(64, 64)]
    graph = captured(Step(nn.Sequential(*stages), [torch.randn(64, 64)], square), 2)
    assert recomputable(graph) == ("0", "1.0", "1.1")
    assert_like_torch(
        recomputed(graph, ("0", "1.0")),
        captured(Step(nn.Sequential(*stages), [torch.randn(64, 64)], square), 2, ("0", "1.0")),
    )
    uncalled = Made(lambda made, x: made.h[0][1](made.h[0][0](x)), h=nn.ModuleList([nn.ModuleList(linears(2, 64))]))
    assert recomputable(captured(Step(uncalled, [torch.randn(64, 64)], square), 1)) == ()


def test_blocks_that_share_a_module_are_left_out() -> None:
    shared, others = nn.Linear(64, 64), linears(2, 64)
    blocks = [
        Made(lambda made, x: made.other(made.shared(x).tanh()).tanh(), shared=shared, other=each) for each in others
    ]
    graph = captured(Step(nn.Sequential(*blocks, Block(0.0)), [torch.randn(64, 64)], square), 2)
    assert recomputable(graph) == ("2",)


def test_blocks_that_read_and_change_a_mapping_are_left_out() -> None:
    """Computed again, a block would read what a later one has written."""

    def remembering(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        memory = {"last": x}
        for layer in model.layers:
            x = layer(x, memory)
        return x

    def block(layer: nn.Module, x: torch.Tensor, memory: dict[str, torch.Tensor]) -> torch.Tensor:
        memory["last"] = made = layer.dense(x * memory["last"].tanh()).relu()
        return made

    with torch.device("meta"):
        layers_of = [Made(block, dense=nn.Linear(64, 64)) for _ in range(4)]
        module, x = Made(remembering, layers=nn.ModuleList(layers_of)), torch.empty(32, 64)
    graph = capture_training(module, [x], square)
    assert not {f"layers.{number}" for number in range(4)} & {*recomputable(graph)}


def test_a_llamas_layers_are_blocks_and_not_their_attentions() -> None:
    """Which would keep more inputs: 78.8 MB for 63.0 MB (4 layers, attention written out)."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(num_hidden_layers=4, vocab_size=256, use_cache=False, **sizes)
    with torch.device("meta"):
        model, ids = transformers.LlamaForCausalLM(config), torch.empty(2, 128, dtype=torch.int64)
    graph = capture_training(model, {"input_ids": ids, "labels": ids})
    assert recomputable(graph) == tuple(f"model.layers.{number}" for number in range(4))


def test_copies_wait_for_the_gradient_of_their_block() -> None:
    """So no order runs them early, which would keep what they make."""
    graph = captured(stack(), 1)
    mine = recomputed(graph, recomputable(graph))
    for dispatch in ("fifo", "priority", "list"):
        schedule = on_one(mine, dispatch)
        loss = max(op for op, part in enumerate(mine.passes) if part == "forward")
        again = [op for op, part in enumerate(mine.passes) if part == RECOMPUTATION]
        assert schedule.start_us[again].min() >= schedule.finish_us[loss]
        begun = [
            schedule.start_us[[op for op in again if mine.modules[op].startswith(block)]].min() for block in "3210"
        ]
        assert begun == sorted(begun)


def test_nothing_recomputed_is_the_graph_itself() -> None:
    graph = captured(stack(), 2)
    assert recomputed(graph, ()) is graph


def test_updates_of_parameters_are_not_computed_again() -> None:
    graph = captured(stack(), 1, optimizer_step=True)
    again = recomputed(graph, recomputable(graph))
    assert again.num_ops > graph.num_ops
    updates = [sum(kind == "optimizer.adam" for kind in each.op_types) for each in (graph, again)]
    assert updates == [20, 20]  # all parameters of the stack, once


def test_layers_that_keep_nothing_of_their_own_are_no_blocks() -> None:
    graph = capture_training(linears(3, 8), [torch.ones(4, 8)], square)
    assert recomputable(graph) == ()


def test_what_cant_be_recomputed_is_refused() -> None:
    with pytest.raises(PlanError, match=r"computes nothing in 'layers\.9'"):
        recomputed(chained(2, 8, 4), ("layers.9",))
    forward = ComputationGraph.from_ops("net", [{"name": "a", "module": "0"}])
    with pytest.raises(PlanError, match="net says of no op that it is backward"):
        recomputed(forward, ("0",))
