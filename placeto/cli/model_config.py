"""CONFIG arguments: a language model by the ``config.json`` of `transformers`, built without weights.

The file is read from this machine. Nothing is downloaded, and no code that comes with a model is run.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeto.cli.common import UsageError
from placeto.cli.graphs import FACTORY_HELP, TrainingOptions, is_factory, step_of

if TYPE_CHECKING:
    from torch import nn

MODEL_HELP = f"{FACTORY_HELP}, or the config.json of a language model of transformers"
DEFAULT_BATCH, DEFAULT_LENGTH = 1, 1024


def find_model(
    argument: str, options: TrainingOptions, batch: int | None, length: int | None
) -> tuple[str, nn.Module, Any, Any, Any]:
    """Return the name to show for a FACTORY or CONFIG, and its module, inputs, loss or None, and targets.

    Raises:
        UsageError: the argument is neither, an option is for the other of the two, or the model can't be built.
    """
    if is_config(argument):
        if options.settings or options.loss is not None:
            raise UsageError("--set and --loss are for a FACTORY; a model by its config.json has its own loss")
        for option, number in (("--batch", batch), ("--length", length)):
            if number is not None and number < 1:
                raise UsageError(f"{option} must be at least 1, not {number}")
        path = _file(argument)
        made = make_model(argument, batch or DEFAULT_BATCH, length or DEFAULT_LENGTH)
        return (path.absolute().parent.name if path.name == "config.json" else path.stem), *made
    if not is_factory(argument):
        raise UsageError(
            f"{argument!r}: a model is needed, whose step is split into micro-batches, and no graph: {MODEL_HELP}"
        )
    if batch is not None or length is not None:
        raise UsageError("--batch and --length are for a config.json; a factory says how large its inputs are")
    from placeto.cli.factory import make, parted

    made = step_of(make(argument, options.settings), argument, options)
    return parted(argument)[1].partition("(")[0].strip(), *made


def is_config(argument: str) -> bool:
    """Whether an argument names a file of JSON that says which model of transformers it is of, or a folder with one."""
    path = _file(argument)
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and "model_type" in document


def make_model(argument: str, batch: int, length: int) -> tuple[nn.Module, dict[str, Any], Any, tuple[()]]:
    """Build a model on "meta"; return (module, inputs by name, loss or None, no targets), as a factory does.

    Models that generate text compute their loss themselves. For others, it is the mean square of the last hidden
    states.

    Args:
        argument: a file or folder, as `is_config` takes it.
        batch: number of sequences.
        length: number of tokens of each sequence.

    Raises:
        UsageError: transformers isn't installed, or it has no such model or can't build it. Or the model has quantized
            weights, no layers, or other inputs than text.
    """
    import torch

    try:
        import transformers
    except ImportError:
        raise UsageError(f"{argument}: transformers is needed to build it: pip install transformers") from None
    path = _file(argument)
    document = json.loads(path.read_bytes())
    if document.pop("quantization_config", None) is not None:
        raise UsageError(f"{path}: has quantized weights, which can't be captured: take out its quantization_config")
    if (kind := document["model_type"]) not in transformers.CONFIG_MAPPING:
        here = f"transformers {transformers.__version__} has no model_type {kind!r}"
        raise UsageError(f"{path}: {here}: install a version that has it, or give a FACTORY")
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            config = transformers.AutoConfig.for_model(**document)
            config.use_cache = False
            generates = type(config) in transformers.AutoModelForCausalLM._model_mapping
            auto = transformers.AutoModelForCausalLM if generates and _causal(document) else transformers.AutoModel
            with torch.device("meta"):
                module = auto.from_config(config)
    except Exception as problem:  # whatever a wrong value makes transformers raise
        raise UsageError(f"{path}: transformers can't build it: {problem}") from None
    if (layers := getattr(config, "num_hidden_layers", 1)) < 1:
        raise UsageError(f"{path}: it says {layers} layers: give how many the model has, such as 12")
    if module.main_input_name != "input_ids" or getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{path}: {kind} is no model of text alone: give a FACTORY, which says what its inputs are")
    module.train()
    ids = torch.empty(batch, length, dtype=torch.int64, device="meta")
    if auto is transformers.AutoModelForCausalLM:
        return module, {"input_ids": ids, "labels": ids}, None, ()
    return module, {"input_ids": ids}, lambda output: output.last_hidden_state.square().mean(), ()


def can_checkpoint(module: nn.Module) -> bool:
    """Whether a module is a model of transformers that can checkpoint the activations of its blocks."""
    return bool(getattr(module, "supports_gradient_checkpointing", False))


def checkpoint(module: nn.Module, on: bool) -> None:
    """Let a model for which `can_checkpoint` is True checkpoint the activations of its blocks, or keep them."""
    switch: Any = module
    with warnings.catch_warnings(action="ignore"):
        if on:
            switch.gradient_checkpointing_enable({"use_reentrant": False})
        elif switch.is_gradient_checkpointing:
            switch.gradient_checkpointing_disable()


def _file(argument: str) -> Path:
    path = Path(argument)
    return path / "config.json" if path.is_dir() else path


def _causal(document: dict[str, Any]) -> bool:
    names = document.get("architectures") or ["ForCausalLM"]
    return any("CausalLM" in str(name) or "LMHead" in str(name) for name in names)
