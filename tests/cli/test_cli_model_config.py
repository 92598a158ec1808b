"""Models by their config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from placeto.capture.trace import capture_training
from placeto.cli.shared.model_config import ModelOptions, is_config
from placeto.errors import CaptureError, UsageError
from placeto.plumbing.progress import ProgressBar

pytest.importorskip("transformers")
SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}


def written(folder: Path, **config: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_models_that_generate_give_their_loss(tmp_path: Path) -> None:
    path = written(tmp_path, model_type="llama", torch_dtype="bfloat16", **SMALL)
    name, module, inputs, loss, targets, _ = ModelOptions(model=path, batch=3, length=5).find()
    assert (name, loss, targets) == (tmp_path.name, None, ())
    assert type(module).__name__ == "LlamaForCausalLM"
    assert {(str(one.device), str(one.dtype)) for one in module.parameters()} == {("meta", "torch.bfloat16")}
    assert {key: tuple(value.shape) for key, value in inputs.items()} == {"input_ids": (3, 5), "labels": (3, 5)}
    assert ModelOptions(model=str(tmp_path)).find().inputs["input_ids"].shape == (1, 1024)


def test_others_have_the_mean_square_of_their_hidden_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, told in (
        ("BertModel", ""),
        ("BertForQuestionAnswering", "this is a step of BertModel: the labels of BertForQuestionAnswering"),
    ):
        path = written(tmp_path, model_type="bert", architectures=[name], **SMALL)
        _, module, inputs, loss, *_ = ModelOptions(model=path, batch=2, length=4).find()
        assert list(inputs) == ["input_ids"]
        assert loss(module(**inputs)).dim() == 0
        assert told in capsys.readouterr().err


def test_a_sequence_is_as_long_as_the_model_has_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """BERT has 512: a step of more tokens can't be captured, and that of a GPT-2 can't be run."""
    path = written(tmp_path, model_type="bert", **SMALL)
    assert ModelOptions(model=path).find().inputs["input_ids"].shape == (1, 512)
    assert "a sequence has 512 tokens, as many as the model has positions" in capsys.readouterr().err
    path = written(tmp_path, model_type="gpt2", n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=64)
    assert ModelOptions(model=path, length=65).find().inputs["input_ids"].shape == (1, 65)
    assert "it can't be run on 65 tokens" in capsys.readouterr().err
    ModelOptions(model=path, length=64).find()
    assert not capsys.readouterr().err


CLIP = {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 14, **SMALL}
LLAVA = {"text_config": {"model_type": "llama", **SMALL}, "vision_config": CLIP, "image_token_index": 39}


def test_a_class_that_transformers_lacks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, model_type="llama", architectures=["LLaMAForCausalLM"], **SMALL)
    assert type(ModelOptions(model=path).find().module).__name__ == "LlamaForCausalLM"
    assert "this is a step of LlamaForCausalLM: transformers " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("BertForMaskedLM", {"model_type": "bert", **SMALL}),
        ("LlavaForConditionalGeneration", {"model_type": "llava", **LLAVA}),
        ("GPT2LMHeadModel", {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 40}),
    ],
)
def test_the_class_that_is_named_is_built(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, architectures=[name], **config)
    _, module, inputs, loss, *_ = ModelOptions(model=path, batch=2, length=4).find()
    assert type(module).__name__ == name
    graph = capture_training(module, inputs, loss)
    assert graph.param_bytes.sum() >= sum(parameter.nbytes for parameter in module.parameters())


def test_a_model_that_needs_more_than_text_says_so(tmp_path: Path) -> None:
    parts = {"text_config": SMALL, "vision_config": {"image_size": 28, "patch_size": 14, **SMALL}}
    options = ModelOptions(model=written(tmp_path, model_type="clip", **parts))
    step = options.find()
    with (
        ProgressBar("capturing", total=1) as bar,
        pytest.raises(CaptureError, match="CLIPModel takes image and text, and text alone is given: give a FACTORY"),
    ):
        options.captured(step, bar)(1, step.batch, 1)


def test_what_is_a_config(tmp_path: Path) -> None:
    assert is_config(written(tmp_path, model_type="llama"))
    assert is_config(str(tmp_path))
    for other in (
        "net.py:net",
        "cifar10:test:0",
        str(tmp_path / "none.json"),
        written(tmp_path, format="placeto.graph/1"),
    ):
        assert not is_config(other)
    (tmp_path / "config.json").write_text("{")
    assert not is_config(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "llama", "quantization_config": {"load_in_4bit": True}}, "quantized weights"),
        ({"model_type": "no-such-model"}, "has no model_type 'no-such-model': install a version that has it"),
        ({"model_type": "gpt2", "n_layer": -3}, "it says -3 layers: give how many"),
        ({"model_type": "llama", "num_hidden_layers": 2**63}, "it says 9223372036854775808 layers: give how many"),
        ({"model_type": ["llama"]}, r"has no model_type \['llama'\]"),
        ({"model_type": "gpt2", "architectures": [7]}, r"architectures must be a list with the name of a"),
        ({"model_type": "gpt2", "architectures": ["BertForMaskedLM"]}, "is no class of model_type 'gpt2'"),
        ({"model_type": "llama", "hidden_size": "wide"}, "it, of model_type llama: .*'hidden_size' expected"),
        ({"model_type": "gpt2", "n_layer": 1, "activation_function": "zz"}, "activation_function is 'zz', which it"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "zz"}}, "rope_parameters.rope_type is 'zz', which"),
        ({"model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1}, "no model of text alone"),
        ({"model_type": "vit", "num_hidden_layers": 1}, "no model of text alone"),
        ({"model_type": "bark"}, "bark is no model of text alone"),
    ],
)
def test_what_can_not_be_built_is_refused(config: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        ModelOptions(model=written(tmp_path, **config)).find()
    assert "config.json: " in str(refused.value)
