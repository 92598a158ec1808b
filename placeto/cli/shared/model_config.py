"""CONFIG arguments: a language model by the ``config.json`` of `transformers`, built without weights.

The file is read from this machine. Nothing is downloaded, and no code that comes with a model is run.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from placeto.cli.shared.graphs import is_factory
from placeto.cli.shared.options import FACTORY_HELP, OptionalCount, Size, TrainingOptions, refuse
from placeto.errors import UsageError
from placeto.planning.numbers import COUNTS

if TYPE_CHECKING:
    from torch import nn

    from placeto.cli.shared.factory import UserStep

_MODEL_HELP = f"{FACTORY_HELP}, or the config.json of a language model of transformers"
DEFAULT_BATCH, DEFAULT_LENGTH = 1, 1024


@dataclass(frozen=True, kw_only=True)
class ModelOptions(TrainingOptions):
    """A model whose training step is planned or judged, and the memory that it must leave free."""

    model: Annotated[Positional[str], arg(metavar="FACTORY|CONFIG", help=_MODEL_HELP)]
    headroom: Size = 0
    """memory of each device that stays free, such as 1GB"""
    batch: OptionalCount = None
    """for a CONFIG: how many sequences a step has, 1 if not given"""
    length: OptionalCount = None
    """for a CONFIG: how many tokens a sequence has, 1024 if not given"""

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of micro-batches to try."""
        return COUNTS if isinstance(self.micro_batches, str) else (self.micro_batches,)

    def find(self) -> UserStep:
        """Return the step of the model.

        Raises:
            UsageError: the model is neither a FACTORY nor a CONFIG, an option is for the other of the two, or the model
                can't be built.
        """
        from placeto.cli.shared.factory import UserStep, user_step

        if is_config(self.model):
            refuse(self, ("settings", "loss"), "is for a FACTORY; a model by its config.json has its own loss")
            path = _file(self.model)
            name = path.absolute().parent.name if path.name == "config.json" else path.stem
            return UserStep(name, *make_model(self.model, self.batch or DEFAULT_BATCH, self.length or DEFAULT_LENGTH))
        if not is_factory(self.model):
            needed = "a model is needed, whose step is split into micro-batches, and no graph"
            raise UsageError(f"{self.model!r}: {needed}: {_MODEL_HELP}")
        refuse(self, ("batch", "length"), "is for a config.json; a factory says how large its inputs are")
        return user_step(self.model, self)


Model = Annotated[ModelOptions, arg(name="")]


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


def make_model(argument: str, batch: int, length: int) -> tuple[nn.Module, dict[str, Any], Any]:
    """Build a model on "meta"; return (module, inputs by name, loss or None), as a factory does.

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
        return module, {"input_ids": ids, "labels": ids}, None
    return module, {"input_ids": ids}, lambda output: output.last_hidden_state.square().mean()


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
