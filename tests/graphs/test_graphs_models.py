"""The families of published models: sizes and splits, small members captured and trained, what each model promises."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graphs import (
    FAMILIES,
    MODELS,
    SHIPPED,
    amoebanet,
    bert,
    cells,
    gnmt,
    inception_v3,
    llama,
    moe,
    nasnet,
    recurrent,
    resnet,
    rnnlm,
    transformer_xl,
    unet,
    wavenet,
)
from graphs.microbatches import in_micro_batches
from graphs.recurrent import LSTMCell
from graphs.training_step import TrainingStep
from placeto.capture.trace import capture_training
from tests.graphs.learning import assert_learns

NAMES = ["inception_v3", "nasnet", "resnet", "amoebanet"]
NAMES += ["rnnlm", "rnnlm-2", "rnnlm-4", "rnnlm-8", "gnmt", "gnmt-2", "gnmt-4", "gnmt-8"]
NAMES += ["transformer_xl", "transformer_xl-2", "transformer_xl-4", "transformer_xl-8"]
NAMES += ["wavenet", "wavenet-2x18", "wavenet-4x36", "bert", "llama", "moe", "unet"]


def on_meta(step: Callable[[Any], TrainingStep], network: Any) -> TrainingStep:
    with torch.device("meta"):
        return step(network)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_all_models_are_families() -> None:
    assert list(MODELS) == NAMES
    assert list(FAMILIES) == [*SHIPPED, *NAMES]
    for name, family in MODELS.items():
        assert family.name == name
        assert len(family.description) > 20


@pytest.mark.parametrize("name", NAMES)
def test_no_network_stands_in_two_splits(name: str) -> None:
    family = MODELS[name]
    networks = [network for split in family.networks.values() for network in split]
    assert len(set(networks)) == len(networks)
    assert list(family.splits) == ["train", "validation", "test"]
    turns = {"rnnlm": 3, "gnmt": 3, "transformer_xl": 3, "wavenet": 2}.get(name, 1)
    assert list(family.splits.values()) == [12 * turns, 4 * turns, 8 * turns]
    for split in family.networks.values():
        varying = {key for key in vars(split[0]) if len({vars(network)[key] for network in split}) > 1}
        assert len(varying) >= 2, "batch and at least one other size vary in every split"


@pytest.mark.parametrize("name", ["rnnlm", "gnmt", "transformer_xl"])
def test_depths_come_by_turns(name: str) -> None:
    for split, size in MODELS[name].splits.items():
        for index in range(size):
            depth = (2, 4, 8)[index % 3]
            network = MODELS[name].networks[split][index]
            assert network == MODELS[f"{name}-{depth}"].networks[split][index // 3]
            assert network.layers == depth


def test_the_test_graphs_open_with_published_sizes_where_there_are_any() -> None:
    first = {name: family.networks["test"][0] for name, family in MODELS.items()}
    assert first["inception_v3"] == inception_v3.Network(batch=32, resolution=299, width=1.0)
    assert MODELS["inception_v3"].networks["test"][1].batch == 64
    assert first["nasnet"] == nasnet.MOBILE
    assert first["resnet"] == resnet.Network(50, 32)
    assert first["rnnlm-2"] == rnnlm.Network(layers=2, hidden=2048, steps=40, batch=64)
    assert first["gnmt-8"] == gnmt.Network(layers=8, hidden=1024, steps=80, batch=128)
    assert (first["wavenet-2x18"].stacks, first["wavenet-4x36"].layers) == (2, 36)
    for layers in (2, 4, 8):
        assert first[f"transformer_xl-{layers}"] == transformer_xl.Network(layers, width=512, length=512, batch=22)
    assert first["amoebanet"] == amoebanet.Network(6, 190, 8, resolution=331, stem=96)
    assert first["bert"] == bert.BASE
    assert MODELS["bert"].networks["test"][1] == bert.LARGE
    assert first["llama"].size == llama.LLAMA_1B
    assert first["unet"] == unet.PAPER


TINY: dict[str, tuple[Any, Any]] = {
    "inception_v3": (inception_v3, inception_v3.Network(2, 299, 0.125)),
    "resnet": (resnet, resnet.Network(50, 2, resolution=32)),
    "nasnet": (nasnet, nasnet.Network(1, 192, 2, 32, 8)),
    "amoebanet": (amoebanet, amoebanet.Network(1, 32, 2, 32, 8)),
    "rnnlm": (rnnlm, rnnlm.Network(2, 6, 3, 3, 11)),
    "gnmt": (gnmt, gnmt.Network(3, 6, 3, 2, 11)),
    "transformer_xl": (transformer_xl, transformer_xl.Network(1, 64, 4, 2, 2)),
    "wavenet": (wavenet, wavenet.Network(2, 4, 6, 9, 2)),
    "bert": (bert, bert.Network(1, 64, 16, 4, 2)),
    "llama": (llama, llama.Network(llama.Size(1, 16, 4, 2, 24), 6, 4, 2)),
    "moe": (moe, moe.Network(2, 64, 2, 1, 4, 2)),
    "unet": (unet, unet.Network(2, 4, 8, 2, 2)),
}


@pytest.fixture
def _fewer_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each kind of block in Inception and in ResNet, and of cell; softmax after every other step."""
    monkeypatch.setattr(cells, "STAGES", 1)
    monkeypatch.setattr(cells, "STEM_CELLS", 1)
    monkeypatch.setattr(recurrent, "BLOCK", 2)
    monkeypatch.setitem(resnet.STAGES, 50, (2, 1))
    bodies = (inception_v3.block35(32), inception_v3.REDUCTION35, inception_v3.block17(128))
    monkeypatch.setattr(inception_v3, "BODY", bodies)
    monkeypatch.setattr(inception_v3, "HEAD", (inception_v3.REDUCTION17, inception_v3.BLOCK8))


@pytest.mark.usefixtures("_fewer_blocks")
@pytest.mark.parametrize("name", TINY)
def test_small_members_are_captured_whole(name: str) -> None:
    module, network = TINY[name]
    step = on_meta(module.training_step, network)
    graph = step.capture()
    names = {path for path, _ in step.module.named_parameters()}
    kept = [i for i, kind in enumerate(graph.op_types) if kind == "parameter"]
    assert {graph.op_names[i] for i in kept} == names
    assert graph.param_bytes[kept].sum() == 4 * parameters(step.module)
    costed = {kind for kind, flops in zip(graph.op_types, graph.flops, strict=True) if flops > 0}
    products = {kind for kind in graph.op_types if any(word in kind for word in ("mm", "conv", "attention"))}
    assert products
    assert costed == products, "every matrix product, convolution and attention has FLOPs"
    free = (graph.flops == 0) & (graph.bytes_accessed == 0)
    assert np.all(graph.colocation[free] >= 0)
    assert any(op.endswith("nll_loss_backward") or "nll_loss2d_backward" in op for op in graph.op_types)


@pytest.mark.usefixtures("_fewer_blocks")
@pytest.mark.parametrize("name", TINY)
def test_small_members_learn(name: str) -> None:
    module, network = TINY[name]
    step = module.training_step(network)
    for parameter in step.module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3 / max(1.0, parameter[0].numel() ** 0.5 / 4))
        else:
            nn.init.constant_(parameter, 0.5)
    for buffer_name, buffer in step.module.named_buffers():
        if buffer_name.endswith(("distances", "cos", "sin")):
            nn.init.normal_(buffer)
        elif buffer_name.endswith("mask"):
            buffer.fill_(False)
    assert_learns(step, 2, 0.01, 6)


def test_the_first_test_graph_of_gnmt_8_has_over_50000_ops() -> None:
    """Every layer above the second adds as many ops as the one below it, and every step after the second likewise."""

    def ops(layers: int, steps: int) -> int:
        return on_meta(gnmt.training_step, gnmt.Network(layers, 4, steps, 2, 5)).capture().num_ops

    first = MODELS["gnmt-8"].networks["test"][0]
    assert first.steps > recurrent.BLOCK, "a softmax for each block of steps comes on top"
    few, more = ops(2, 2), ops(2, 3)
    layer, layer_of_three_steps = ops(3, 2) - few, ops(3, 3) - more
    step = more - few + (first.layers - 2) * (layer_of_three_steps - layer)
    assert few + (first.layers - 2) * layer + (first.steps - 2) * step > 50_000


def test_lstm_cell_is_pytorchs() -> None:
    cell, reference = LSTMCell(3, 4).double(), nn.LSTMCell(3, 4).double()
    cell.weight.data = torch.cat([reference.weight_ih, reference.weight_hh], dim=1).T.detach().clone()
    cell.bias.data = (reference.bias_ih + reference.bias_hh).detach()
    x, h, c = torch.randn(2, 3).double(), torch.randn(2, 4).double(), torch.randn(2, 4).double()
    torch.testing.assert_close(cell(x, (h, c)), reference(x, (h, c)))


def test_positions_are_shifted_by_distance() -> None:
    length, memory = 3, 2
    keys = length + memory
    scores = torch.arange(float(length * keys)).view(1, 1, length, keys)
    shifted = transformer_xl._shift(scores)[0, 0]
    for query in range(length):
        for key in range(memory + query + 1):  # what a query may see
            distance = memory + query - key  # the last column is distance 0
            assert shifted[query, key] == scores[0, 0, query, keys - 1 - distance]


def test_no_gradient_flows_into_the_memory() -> None:
    network = transformer_xl.Network(1, 64, 3, 1, 2)
    model = transformer_xl.TransformerXL(network)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    nn.init.normal_(model.distances)
    model.mask.fill_(False)
    words = torch.tensor([[[1, 2, 3]], [[4, 5, 6]]])
    logits = model(words, torch.randn(1, 1, 3, 64))
    (gradient,) = torch.autograd.grad(logits[1].sum(), model.embedding.weight)
    input_rows = gradient - logits[1].shape[0] * 0
    assert torch.equal(input_rows[1], input_rows[7]), "word 1 of the first segment is as far away as an unused one"


def test_wavenet_is_causal() -> None:
    model = wavenet.WaveNet(wavenet.Network(2, 6, 4, 20, 1)).eval()
    samples = torch.randint(256, (1, 20))
    changed = samples.clone()
    changed[0, 12] = (changed[0, 12] + 1) % 256
    same = torch.isclose(model(samples), model(changed)).all(1)[0]
    assert same[:12].all()
    assert not same[12:].all()


def test_rotary_positions_keep_lengths_and_depend_on_distance_only() -> None:
    angle = torch.outer(torch.arange(6.0), torch.tensor([1.0, 0.1])).repeat(1, 2)
    q, k = torch.randn(4), torch.randn(4)
    rotated = [llama._rotate(x.expand(6, 4)[None, None], angle.cos(), angle.sin())[0, 0] for x in (q, k)]
    torch.testing.assert_close(rotated[0].norm(dim=1), q.norm().expand(6))
    torch.testing.assert_close(rotated[0][1] @ rotated[1][0], rotated[0][5] @ rotated[1][4])


def test_micro_batches_give_the_same_gradients() -> None:
    model = nn.Linear(3, 2)
    x, y = torch.randn(8, 3), torch.randint(2, (8,))
    gradients = []
    for count in (1, 4):
        step = in_micro_batches(TrainingStep(model, (x,), (y,), nn.functional.cross_entropy), count)
        gradients.append(torch.autograd.grad(step.loss(step.module(*step.inputs), *step.targets), model.weight)[0])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_micro_batches_can_overlap() -> None:
    def longest_path(micro_batches: int) -> float:
        graph = on_meta(bert.training_step, bert.Network(1, 64, 16, 8, micro_batches)).capture()
        end = graph.flops.copy()
        for edge in range(graph.num_edges):  # edges are in the order of their consumers, which is topological here
            source, reader = graph.edge_src[edge], graph.edge_dst[edge]
            assert source < reader
            end[reader] = max(end[reader], end[source] + graph.flops[reader])
        return float(end.max())

    assert longest_path(2) < 0.6 * longest_path(1)


@pytest.mark.parametrize("chosen", [1, 2])
def test_words_go_to_the_experts_that_their_gate_chose_unless_these_are_full(chosen: int) -> None:
    mixture = moe.Mixture(moe.Network(2, 64, 4, chosen, length=10, batch=2))
    x = torch.rand(20, 64)
    mixture.gate.weight.data[0] += 0.02  # a favourite
    weights, capacity = mixture.gate(x).softmax(-1), 1.25 * 20 * chosen // 4
    expected, words = torch.zeros_like(x), [0] * 4
    for choice in range(chosen):
        for word in range(20):
            expert = int(weights[word].argsort(descending=True)[choice])
            words[expert] += 1
            if words[expert] <= capacity:
                expected[word] += weights[word, expert] * mixture.experts[expert](x[word])
    assert max(words) > capacity
    torch.testing.assert_close(mixture(x), expected)


def test_experts_of_a_step_in_micro_batches_work_as_much_as_those_of_the_whole_step() -> None:
    with torch.device("meta"):
        step = moe.training_step(moe.Network(2, 64, 4, 2, length=16, batch=8))
    whole, parts = (
        capture_training(step.module, step.inputs, step.loss, targets=step.targets, micro_batches=count)
        for count in (1, 4)
    )
    assert parts.flops.sum() == whole.flops.sum()


def test_the_way_up_reads_the_way_down_at_each_level() -> None:
    model, seen = unet.UNet(unet.Network(2, 4, 8, 1)).eval(), []
    for level in (*model.down, *model.up):
        level.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    assert model(torch.randn(1, 3, 8, 8)).shape == (1, unet.CLASSES, 8, 8)
    assert [tuple(output.shape[1:]) for _, output in seen] == [(4, 8, 8), (8, 4, 4), (16, 2, 2), (8, 4, 4), (4, 8, 8)]
    assert torch.equal(seen[3][0][:, :8], seen[1][1])
    assert torch.equal(seen[4][0][:, :4], seen[0][1])


def test_micro_batches_are_equal() -> None:
    step = TrainingStep(nn.Linear(3, 2), (torch.randn(8, 3),), (), lambda y: y.sum())
    with pytest.raises(ValueError, match="a batch of 8 can't be cut into 3 equal micro-batches"):
        in_micro_batches(step, 3)
