"""Which architectures of Hugging Face's transformers can be captured, placed and run.

python -m experiments.architectures [--only NAME ...]

Each model is tiny and has random parameters. Its training step is captured, whole and in two micro-batches, placed on
two devices by `etf`, and run on two cores. The loss and all gradients are compared with those of eager PyTorch. A
difference is relative to the largest number of the same gradient. Models that draw random numbers are found by running
each twice without Placeto: torch's generator moves on, or gradients differ. Where such a model's gradients differ from
eager PyTorch's, only that the step runs is checked. Left out is what `transformers` itself doesn't build or run in
these sizes, or without further packages.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import transformers
import tyro
from torch import Tensor, nn

import placeto
from experiments.command import command
from experiments.harness import measure_cells
from experiments.tables import markdown
from placeto.errors import CaptureError, RunError
from placeto.placing import PlacedModel

SIZES: Mapping[str, float | bool] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_experts_per_tok", "num_key_value_heads"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_local_experts", "num_experts"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"), 0.0),
    **dict.fromkeys(("activation_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout_rate"), 0.0),
    **dict.fromkeys(("hidden_dropout", "embed_dropout", "layerdrop", "encoder_layerdrop", "decoder_layerdrop"), 0.0),
    **dict.fromkeys(("drop_path_rate", "drop_connect_rate"), 0.0),
    **{"d_kv": 8, "head_dim": 8, "state_size": 8, "sliding_window": 16, "vocab_size": 128, "use_cache": False},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "image_size": 64},
}
"""Settings that a configuration is given if it has them."""
SMALL_IMAGES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
NAMES: Mapping[str, str] = {
    "AutoModelForCausalLM": (
        "gpt2 gpt_neo gpt_neox gptj opt bloom llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 "
        "gemma3_text phi phi3 falcon mpt stablelm starcoder2 olmo olmo2 olmoe cohere cohere2 granite granitemoe "
        "deepseek_v2 deepseek_v3 mamba mamba2 falcon_mamba rwkv recurrent_gemma jamba glm glm4 nemotron persimmon "
        "xglm codegen biogpt ctrl openai-gpt gpt_bigcode smollm3 ernie4_5 helium bitnet dbrx jetmoe zamba gpt_oss "
        "exaone4 minimax hunyuan_v1_dense seed_oss lfm2 apertus arcee"
    ),
    "AutoModelForMaskedLM": (
        "bert roberta distilbert albert electra deberta deberta-v2 mpnet xlm-roberta camembert convbert funnel "
        "longformer big_bird nystromformer squeezebert mobilebert rembert fnet xlm flaubert ibert layoutlm "
        "megatron-bert roformer yoso mra ernie esm modernbert tapas"
    ),
    "AutoModelForSeq2SeqLM": (
        "t5 mt5 bart mbart pegasus marian blenderbot blenderbot-small m2m_100 led longt5 prophetnet umt5 "
        "switch_transformers bigbird_pegasus plbart nllb-moe fsmt"
    ),
    "AutoModelForImageClassification": (
        "vit deit beit swin convnext convnextv2 resnet regnet mobilenet_v1 mobilenet_v2 mobilevit efficientnet "
        "poolformer segformer dinov2 cvt vit_msn pvt pvt_v2 focalnet bit data2vec-vision swinv2 levit dinat hiera "
        "ijepa timm_wrapper swiftformer"
    ),
}
"""Model types of `transformers.AutoConfig`, by the class that makes the model."""
BATCH, LENGTH = 4, 16
SAME = 1e-4
"""A relative difference of gradients that counts as rounding."""


@dataclass(frozen=True)
class Architectures:
    """Capture, place and run training steps of many architectures."""

    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ()
    """of these model types"""


class Outcome(NamedTuple):
    """What became of one architecture, whole or in micro-batches."""

    ops: int
    difference: float  # the largest of a gradient; inf where one is there and the other isn't
    random: bool  # it drew random numbers, and its gradients differ
    refused: str  # the message; empty if it ran


def model(kind: str, name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A tiny model with random parameters, and its inputs with labels."""
    known = transformers.AutoConfig.for_model(name)
    own = known.to_dict()
    images = kind == "AutoModelForImageClassification"
    small = {
        key: value
        for key, value in SIZES.items()
        if isinstance(own.get(key), (bool, int, float)) and not (images and type(value) is int and key != "image_size")
    }
    if images and isinstance(own.get("num_attention_heads"), int) and "image_size" in own:
        small |= {key: SIZES[key] for key in SMALL_IMAGES if isinstance(own.get(key), int)}
    config = transformers.AutoConfig.for_model(name, **small)
    torch.manual_seed(0)
    made = getattr(transformers, kind).from_config(config).train()
    if images:
        return made, {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": torch.arange(BATCH) % 2}
    words = torch.randint(3, 100, (BATCH, LENGTH))
    given = {"input_ids": words, "labels": words.clone()}
    return made, given | ({"decoder_input_ids": words.clone()} if kind == "AutoModelForSeq2SeqLM" else {})


def eager(module: nn.Module, inputs: Mapping[str, Tensor], parts: int) -> list[Tensor | None]:
    """Gradients of the mean loss of the parts of a batch; the module stays as it is."""
    own = deepcopy(module)
    for number in range(parts):
        part = {name: value.chunk(parts)[number] for name, value in inputs.items()}
        (own(**part).loss / parts).backward()
    return [parameter.grad for parameter in own.parameters()]


def difference(mine: list[Tensor | None], its: list[Tensor | None]) -> float:
    """The largest difference, relative to the largest number of the same gradient."""
    worst = 0.0
    for one, other in zip(mine, its, strict=True):
        if (one is None) != (other is None):
            return float("inf")
        if one is not None and other is not None and one.numel():
            worst = max(worst, float((one - other).abs().max() / other.abs().max().clamp_min(1e-9)))
    return worst


def outcome(module: nn.Module, inputs: Mapping[str, Tensor], parts: int) -> Outcome:
    """Capture, place and run a training step."""
    expected = eager(module, inputs, parts)
    before = torch.get_rng_state()
    random = difference(eager(module, inputs, parts), expected) > SAME or not torch.equal(torch.get_rng_state(), before)
    own = deepcopy(module)
    try:
        placed = placeto.place(own, inputs, cluster="2xv100", placer="etf", training=True, micro_batches=parts)
        assert isinstance(placed, PlacedModel)
        step = placed.compile(devices=["cpu:0", "cpu:1"])
    except (CaptureError, RunError) as error:
        return Outcome(0, 0.0, random, re.sub(r"\S*site-packages/", "", str(error)))
    step(**inputs)
    found = difference([parameter.grad for parameter in own.parameters()], expected)
    return Outcome(placed.problem.num_ops, found, random and found > SAME, "")


def outcomes(cell: tuple[str, str]) -> list[Outcome]:
    """What became of a model type, whole and in two micro-batches; nothing if there is no such model."""
    try:
        module, inputs = model(*cell)
        eager(module, inputs, 1)
    except Exception:  # whatever transformers raises
        return []
    return [outcome(module, inputs, parts) for parts in (1, 2)]


def verdict(found: Outcome) -> str:
    """In words, for a table."""
    if found.refused:
        return "refused"
    if found.random:
        return "runs; random"
    return f"{found.difference:.0e}" if found.difference <= SAME else f"differs: {found.difference:.0e}"


def main(config: Architectures) -> None:
    """Run all, and print how many ran, what was refused and why, and a line for each."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    named = ((kind, name) for kind, names in NAMES.items() for name in names.split())
    cells = [cell for cell in named if not config.only or cell[1] in config.only]
    tried = measure_cells(cells, outcomes, "architectures")
    found = {cell: ways for cell, ways in tried.items() if ways}
    print(f"transformers {transformers.__version__}; two cores; a batch of {BATCH}.\n")
    for which, title in ((0, "the whole batch"), (1, "two micro-batches")):
        ways = [each[which] for each in found.values()]
        ran = [way for way in ways if not way.refused]
        equal = sum(not way.random and way.difference <= SAME for way in ran)
        random = sum(way.random for way in ran)
        print(
            f"In {title}: {len(ran)} of {len(ways)} run, {equal} with the gradients of eager PyTorch and {random} with "
            f"random numbers; {len(ran) - equal - random} differ; {len(ways) - len(ran)} are refused.\n"
        )
    left_out = [name for (_, name), ways in tried.items() if not ways]
    print(f"Left out are {len(left_out)} of {len(tried)} model types: {', '.join(left_out) or 'none'}.\n")
    lines = [["class", "model type", "ops", "gradients", "gradients, two micro-batches"]]
    lines += [
        [kind, name, f"{whole.ops or ''}", verdict(whole), verdict(two)] for (kind, name), (whole, two) in found.items()
    ]
    print(markdown(lines))
    print("\nRefused:\n")
    for (_, name), (whole, two) in found.items():
        if whole.refused or two.refused:
            print(f"- `{name}`: {whole.refused or 'in two micro-batches: ' + two.refused}")


if __name__ == "__main__":
    command(main, Architectures, "architectures", __doc__, "Nothing is timed.")
