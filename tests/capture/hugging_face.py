"""Models of `transformers` for the zoo, built small from a configuration, without weights."""

from collections.abc import Callable
from typing import Any

import torch

from tests.capture.steps import Entry, Step

_SMALL = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40,
}  # fmt: skip
_DECODER = _SMALL | {"num_key_value_heads": 1, "use_cache": False}


def words(model: str, **options: Any) -> Step:
    """A language model of `transformers`, which gives its loss itself."""
    import transformers

    config = getattr(transformers, model.partition("For")[0].removesuffix("LMHeadModel") + "Config")(**options)
    ids = torch.randint(3, 40, (2, 6))
    labels = torch.tensor([0, 1]) if model.endswith("Classification") else ids
    return Step(getattr(transformers, model)(config), {"input_ids": ids, "labels": labels})


def pictures(model: str, **options: Any) -> Step:
    """A classifier of pictures of `transformers`."""
    import transformers

    config = getattr(transformers, model.partition("For")[0] + "Config")(**options)
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    return Step(getattr(transformers, model)(config), inputs)


def clip() -> Step:
    import transformers

    vision = {"image_size": 32, "patch_size": 16}
    config = transformers.CLIPConfig(text_config=_SMALL, vision_config=_SMALL | vision, projection_dim=8)
    ids = torch.randint(3, 40, (2, 6))
    inputs = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 32, 32), "return_loss": True}
    return Step(transformers.CLIPModel(config), inputs)


def whisper() -> Step:
    import transformers

    config = transformers.WhisperConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=40, num_mel_bins=8, max_source_positions=10, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(2, 8, 20), "labels": torch.randint(3, 40, (2, 5))}
    return Step(transformers.WhisperForConditionalGeneration(config), inputs)


def _hugging(make: Callable[..., Step], *arguments: Any, run: bool = False, **options: Any) -> Entry:
    return Entry(lambda: make(*arguments, **options), run, "transformers")


MODELS = {
    "bert": _hugging(words, "BertForSequenceClassification", **_SMALL),
    "deberta": _hugging(words, "DebertaV2ForSequenceClassification", **_SMALL, relative_attention=True,
                        pos_att_type=["p2c", "c2p"], run=True),
    "distilbert": _hugging(words, "DistilBertForMaskedLM", vocab_size=40, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    "gpt2": _hugging(words, "GPT2LMHeadModel", vocab_size=40, n_embd=16, n_layer=2, n_head=2, use_cache=False),
    "opt": _hugging(words, "OPTForCausalLM", **_SMALL, word_embed_proj_dim=16, ffn_dim=32, use_cache=False),
    "llama": _hugging(words, "LlamaForCausalLM", **_DECODER),
    "gemma": _hugging(words, "GemmaForCausalLM", **_DECODER, head_dim=8),
    "mixtral": _hugging(words, "MixtralForCausalLM", **_DECODER, num_local_experts=3),
    "mamba": _hugging(words, "MambaForCausalLM", vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=1,
                      use_cache=False),
    "t5": _hugging(words, "T5ForConditionalGeneration", vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1,
                   num_heads=2, use_cache=False, decoder_start_token_id=0),
    "vit": _hugging(pictures, "ViTForImageClassification", **_SMALL, image_size=32, patch_size=16),
    "swin": _hugging(pictures, "SwinForImageClassification", image_size=32, patch_size=4, embed_dim=8, depths=[1, 1],
                     num_heads=[1, 2], window_size=4),
    "convnext": _hugging(pictures, "ConvNextForImageClassification", hidden_sizes=[8, 16], depths=[1, 1],
                         num_stages=2),
    "resnet-hf": _hugging(pictures, "ResNetForImageClassification", embedding_size=8, hidden_sizes=[8, 16],
                          depths=[1, 1]),
    "clip": _hugging(clip),
    "whisper": _hugging(whisper),
}  # fmt: skip
"""Name -> entry."""
