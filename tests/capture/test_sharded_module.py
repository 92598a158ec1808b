"""The step of one rank of a tensor-parallel group: its share of the products, and the collectives of the group."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from placeto.capture.trace import capture_training
from placeto.errors import CaptureError
from placeto.problem.graph.label_values import NO_MICRO_BATCH


class Uncopied(nn.Module):
    def __deepcopy__(self, memo):
        raise TypeError("a lock")


PAIR = {"1": ColwiseParallel(), "3": RowwiseParallel()}


def mlp(width=1, plan=PAIR, hidden=128, **how):
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 64))
        x = torch.empty(32, 16)
    return capture_training(module, [x], torch.sum, name="mlp", width=width, parallel=plan, **how)


def llama(width=1, plan=None, **sizes):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4} | sizes
    config = transformers.LlamaConfig(num_hidden_layers=2, vocab_size=4096, use_cache=False, **sizes)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
        ids = torch.empty(1, 512, dtype=torch.int64)
    if plan is None:
        plan = {f"model.{path}": style for path, style in config.base_model_tp_plan.items()}
    return capture_training(model, {"input_ids": ids, "labels": ids}, name="llama", width=width, parallel=plan)


def collectives(graph):
    found = [op for op, kind in enumerate(graph.op_types) if "c10d" in kind]
    return [(graph.op_types[op].rpartition(".")[2], int(graph.bytes_accessed[op]), graph.passes[op]) for op in found]


def test_two_linear_layers():
    whole, rank = mlp(), mlp(4)
    first, pair = 2 * 2 * 32 * 16 * 64, 3 * 2 * (2 * 32 * 64 * 128)  # the first layer has no gradient of its input
    assert whole.flops.sum() == first + pair
    assert rank.flops.sum() == first + pair / 4
    read_and_written = 2 * 32 * 64 * 4
    assert collectives(rank) == [("all_reduce", read_and_written, each) for each in ("forward", "backward")]
    assert rank.param_bytes.sum() == 4 * (17 * 64 + (64 * 128 + 128 + 128 * 64) // 4 + 64)


def test_micro_batches_of_a_rank():
    assert mlp(4, micro_batches=4).flops.sum() == mlp(4).flops.sum()
    assert len(collectives(mlp(4, micro_batches=4))) == 8


def test_autocast_copies_a_shard_once_for_all_micro_batches():
    """As it copies a whole parameter: autocast keeps copies of parameters, and a DTensor is one."""
    for width in (1, 4):
        graph = mlp(width, micro_batches=4, precision="bf16")
        copies = [op for op, kind in enumerate(graph.op_types) if kind == "aten._to_copy"]
        of_weights = [op for op in copies if any(graph.op_types[read] == "parameter" for read in graph.reads[op])]
        assert len(of_weights) == 6  # weights and biases of three layers
        assert set(graph.micro_batches[of_weights].tolist()) == {NO_MICRO_BATCH}


def test_two_layers_of_llama():
    """Of 10.87 GFLOP, each rank computes a quarter of the layers, and the whole head."""
    whole, rank = llama(), llama(4)
    head = 3 * 2 * 512 * 256 * 4096
    assert whole.flops.sum() / 1e9 == pytest.approx(10.87, abs=0.005)
    assert rank.flops.sum() == head + (whole.flops.sum() - head) / 4
    sent = collectives(rank)
    assert set(sent) == {("all_reduce", 2 * 512 * 256 * 4, each) for each in ("forward", "backward")}
    assert [each for *_, each in sent].count("forward") == 2 * 2
    assert [each for *_, each in sent].count("backward") == 2 * 5


def test_the_plan_that_a_model_brings_along():
    """It also shards the head and the embedding, here one parameter."""
    transformers = pytest.importorskip("transformers")
    kind = pytest.importorskip("transformers.distributed.tensor_parallel")
    assert hasattr(kind, "apply_tensor_parallelism"), transformers.__version__
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=256,
        use_cache=False, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model, ids = transformers.LlamaForCausalLM(config), torch.empty(2, 8, dtype=torch.int64)
    arguments = model, {"input_ids": ids, "labels": ids}
    whole, rank = capture_training(*arguments), capture_training(*arguments, width=4)
    assert rank.flops.sum() == whole.flops.sum() / 4
    norms, buffers = 3 * 64 * 4, 2 * 8 * 4
    assert rank.param_bytes.sum() == norms + buffers + (whole.param_bytes.sum() - norms - buffers) / 4
    assert capture_training(*arguments).hash == whole.hash  # the model is left as it was


def test_experts():
    """They call `torch.distributed.all_reduce`, which changes its argument."""
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=256, use_cache=False, num_local_experts=4,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config).bfloat16()
        ids = torch.empty(2, 8, dtype=torch.int64)
    whole, rank = (capture_training(model, {"input_ids": ids, "labels": ids}, width=width) for width in (1, 2))
    router = 3 * 2 * 16 * 64 * 4
    assert rank.flops.sum() == router + (whole.flops.sum() - router) / 2
    assert sum(kind == "all_reduce" for kind, *_ in collectives(rank)) == 2 + 1 + 4 + 2


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: mlp(2, {"7": ColwiseParallel()}), "the parallel plan has '7', and the model has no such module"),
        (lambda: mlp(2, {"2": ColwiseParallel()}), "can't be applied to '2'"),
        (lambda: mlp(2, {"1": 3}), "the parallel plan has int for '1'"),
        (lambda: mlp(2, {1: PAIR["1"]}), "the parallel plan has ColwiseParallel for 1"),
        (lambda: mlp(2, {"1": "sideways"}), "the parallel plan has 'sideways', which is no style of transformers"),
        (lambda: mlp(2, None), "the model has no parallel plan, which groups of 2 need"),
        (lambda: mlp(2, hidden=129), "1.weight has the sizes 129 x 64, which groups of 2 don't divide"),
        (lambda: mlp(2, run=True), "without run"),
        (lambda: capture_training(torch.relu, [], width=2, parallel=PAIR), "only a torch.nn.Module can be captured"),
        (lambda: capture_training(Uncopied(), [], width=2, parallel=PAIR), "can't be copied"),
        (lambda: llama(8), "num_key_value_heads is 4, which groups of 8 don't divide"),
        (lambda: llama(4, intermediate_size=1022), "which groups of 4 don't divide"),
        (
            lambda: llama(2, {"lm_head": "colwise_gather_output"}, tie_word_embeddings=True),
            "embed_tokens.weight and lm_head.weight are one parameter, and the parallel plan doesn't shard it alike",
        ),
    ],
)
def test_refusals(made, message):
    with pytest.raises(CaptureError) as refused:
        made()
    assert message in str(refused.value)
    assert not dist.is_initialized()


def test_a_process_group_of_the_user_is_left_alone():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(CaptureError, match="this process is in one"):
            mlp(2)
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
