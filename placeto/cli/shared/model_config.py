"""CONFIG arguments: a language model by the ``config.json`` of `transformers`, built without weights.

The file is read from this machine. Nothing is downloaded, and no code that comes with a model is run.
"""

from __future__ import annotations

import inspect
import re
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from placeto.cli.shared.common import note
from placeto.cli.shared.graphs import is_factory
from placeto.cli.shared.options import FACTORY_HELP, OptionalCount, Size, TrainingOptions, refuse
from placeto.errors import UsageError
from placeto.planning.variants import COUNTS
from placeto.problem.json_files import read_json
from placeto.problem.messages import quote

if TYPE_CHECKING:
    from torch import nn

    from placeto.cli.shared.factory import UserStep
    from placeto.planning.variants import GraphOf
    from placeto.plumbing.progress import ProgressBar
    from placeto.problem.graph import ComputationGraph

_MODEL_HELP = f"{FACTORY_HELP}, or the config.json of a language model of transformers"
DEFAULT_BATCH, DEFAULT_LENGTH = 1, 1024
_MOST_LAYERS = 1000
_LONGEST = 200  # characters of a message of transformers
_HUB = "https://huggingface.co/"
_OF_TOKENS = "ForCausalLM", "LMHead", "ForMaskedLM", "ForConditionalGeneration"
"""Parts of the names of classes whose loss needs a label for each token, and nothing else."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(TrainingOptions):
    """A model whose training step is planned or judged, and the memory that it must leave free."""

    model: Annotated[Positional[str], arg(metavar="FACTORY|CONFIG", help=_MODEL_HELP)]
    headroom: Size = 0
    """memory of each device that stays free, such as 1GB"""
    batch: OptionalCount = None
    """for a CONFIG: how many sequences a step has, 1 if not given"""
    length: OptionalCount = None
    """for a CONFIG: how many tokens a sequence has; if not given 1024, or the model's positions if it has fewer"""

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of micro-batches to try."""
        return COUNTS if isinstance(self.micro_batches, str) else (self.micro_batches,)

    def find(self) -> UserStep:
        """Return the step of the model.

        Raises:
            UsageError: the model is neither a FACTORY nor a CONFIG, an option is for the other of the two, or the model
                can't be built.
            CaptureError: the batch has no samples.
        """
        from placeto.capture.inputs.batch_dimension import check_samples
        from placeto.cli.shared.factory import UserStep, user_step
        from placeto.errors import CaptureError
        from placeto.problem.messages import within

        if is_config(self.model):
            refuse(self, ("settings", "loss"), "is for a FACTORY; a model by its config.json has its own loss")
            path = _file(self.model)
            name = path.absolute().parent.name if path.name == "config.json" else path.stem
            return UserStep(name, *make_model(self.model, self.batch or DEFAULT_BATCH, self.length))
        if not (is_factory(self.model) or Path(self.model).suffix == ".py") or _is_address(self.model):
            raise UsageError(f"{quote(self.model)}: {_no_model(self.model)}")
        refuse(self, ("batch", "length"), "is for a config.json; a factory says how large its inputs are")
        step = user_step(self.model, self)
        with within(CaptureError, self.model):
            check_samples(step.inputs, step.targets)
        return step

    def captured(self, step: UserStep, bar: ProgressBar) -> GraphOf:
        """Return what captures the step in a number of micro-batches, once, while `bar` says so."""
        from placeto.errors import CaptureError

        @cache
        def graph_of(count: int, samples: int, width: int) -> ComputationGraph:
            fewer = "" if samples == step.batch else f" of a batch of {samples}"
            fewer += f", groups of {width}" if width > 1 else ""
            bar.update(min(bar.completed + 1, bar.total), f"{count} micro-batch{'es' if count > 1 else ''}{fewer}")
            try:
                return step.with_samples(samples).capture(self, count, width=width)
            except CaptureError as error:
                why = f"{error}{_beside_text(step.module) if is_config(self.model) else ''}"
                if count == self.micro_batches and (samples, width) == (step.batch, 1):
                    raise UsageError(f"--micro-batches {count}: {why}") from None
                raise CaptureError(why) from error

        return graph_of


Model = Annotated[ModelOptions, arg(name="")]


def is_config(argument: str) -> bool:
    """Whether an argument names a file of JSON that says which model of transformers it is of, or a folder with one."""
    path = _file(argument)
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        document = read_json(path, UsageError)
    except (OSError, UsageError):
        return False
    return isinstance(document, dict) and "model_type" in document


def make_model(argument: str, batch: int, length: int | None) -> tuple[nn.Module, dict[str, Any], Any]:
    """Build a model on "meta"; return (module, inputs by name, loss or None), as a factory does.

    The class is that of the config's field "architectures". If its loss needs a label for each token, as of models that
    generate text or fill in words, the model computes its loss itself. For others, the model without a head is built,
    and the loss is the mean square of the last hidden states; a note says so.

    Args:
        argument: a file or folder, as `is_config` takes it.
        batch: number of sequences.
        length: number of tokens of each sequence; None: 1024, or as many as the model has positions if it has fewer.

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
    document = read_json(path, UsageError)
    if document.pop("quantization_config", None) is not None:
        raise UsageError(f"{path}: has quantized weights, which can't be captured: take out its quantization_config")
    kind = document["model_type"]
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        here = f"transformers {transformers.__version__} has no model_type {quote(kind)}"
        raise UsageError(f"{path}: {here}: install a version that has it, or give a FACTORY")
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            config = transformers.AutoConfig.for_model(**document)
            config.use_cache = False
            layers = getattr(config.get_text_config(), "num_hidden_layers", 1)
            named, built = _classes(document, config)
            if 1 <= layers <= _MOST_LAYERS:
                with torch.device("meta"):
                    module = built._from_config(config)
    except Exception as problem:  # whatever a wrong value makes transformers raise
        what = f"transformers can't build it, of model_type {kind}"
        raise UsageError(f"{path}: {what}: {_said(problem, document)}") from None
    if not 1 <= layers <= _MOST_LAYERS:
        raise UsageError(f"{path}: it says {quote(layers)} layers: give how many the model has, such as 12")
    takes_text = module.main_input_name == "input_ids" and "input_ids" in inspect.signature(module.forward).parameters
    if not takes_text or getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{path}: {kind} is no model of text alone: give a FACTORY, which says what its inputs are")
    module.train()
    ids = torch.empty(batch, _tokens(length, config, path), dtype=torch.int64, device="meta")
    if named and built.__name__ != named:
        note(f"{path}: this is a step of {built.__name__}: {_why(named)}")
    if any(kind in built.__name__ for kind in _OF_TOKENS):
        return module, {"input_ids": ids, "labels": ids}, None
    return module, {"input_ids": ids}, lambda output: output.last_hidden_state.square().mean()


def _tokens(length: int | None, config: Any, path: Path) -> int:
    """The number of tokens of a sequence; a note says if it is less than usual, or more than the model's positions."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) or not 1 <= positions < (length or DEFAULT_LENGTH):
        return length or DEFAULT_LENGTH
    if length is None:
        note(f"{path}: a sequence has {positions} tokens, as many as the model has positions")
        return positions
    note(f"{path}: the model has {positions} positions: unless it computes them, it can't be run on {length} tokens")
    return length


def _beside_text(module: nn.Module) -> str:
    """Say what a model can take beside text, if there is something; some of these models do without it."""
    taken = getattr(module, "input_modalities", "text")
    kinds = " and ".join([taken] if isinstance(taken, str) else taken)
    what = f"{type(module).__name__} takes {kinds}, and text alone is given"
    return "" if kinds == "text" else f"; {what}: give a FACTORY, which says what its inputs are"


def precision_of(module: nn.Module, precision: str) -> str:
    """Return a precision to show: for a module that runs as it is, the dtypes of its parameters, such as bf16."""
    names = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in module.parameters()})
    return " and ".join(names.get(dtype, dtype) for dtype in dtypes) if precision == "fp32" and dtypes else precision


def _file(argument: str) -> Path:
    path = Path(argument)
    return path / "config.json" if path.is_dir() else path


def _is_address(argument: str) -> bool:
    """Whether an argument is an address, such as https://example.org; a factory's arguments may have some."""
    return re.match(r"\w+://", argument) is not None


def _no_model(argument: str) -> str:
    """Why an argument is neither a FACTORY nor a CONFIG."""
    path = Path(argument)
    if path.is_dir():
        return "is a folder without a config.json that says its model_type"
    if _is_address(argument):
        return "nothing is downloaded: give the model's config.json, as a file"
    if path.suffix == ".json" and path.is_file():
        try:
            document = read_json(path, UsageError)
        except UsageError as problem:
            return str(problem).removeprefix(f"{path}: ")
        if not isinstance(document, dict) or "format" not in document:
            return "has no model_type, as a config.json of transformers has"
    if path.is_file() or ":" in argument:
        return f"a model is needed, whose step is split into micro-batches, and no graph: {_MODEL_HELP}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", argument) and not argument.endswith(".json"):
        return f"no such file or folder; nothing is downloaded: give the model's config.json, from {_HUB}{argument}"
    return f"no such file or folder; needed is {_MODEL_HELP}"


def _why(named: str) -> str:
    """Why another class is built than the one that is named."""
    import transformers

    if not hasattr(transformers, named):
        return f"transformers {transformers.__version__} has no class {quote(named)}"
    return f"the labels of {named} aren't known, so that it has no head"


def _said(problem: Exception, document: dict[str, Any]) -> str:
    """What transformers raised, in one line, and the field whose value it doesn't know if that can be told."""
    text = " ".join(str(problem).split())[:_LONGEST]
    unknown = problem.args[0] if isinstance(problem, KeyError) and problem.args else None
    if unknown is not None and (field := _field_with(unknown, document)):
        return f"{field} is {quote(unknown)}, which it doesn't know"
    return text if isinstance(problem, ValueError) else f"{type(problem).__name__}: {text or 'no message'}"


def _field_with(value: Any, document: dict[str, Any]) -> str:
    """The path of a field that has a value; "" if there is none."""
    for key, other in document.items():
        if other == value:
            return key
        if isinstance(other, dict) and (field := _field_with(value, other)):
            return f"{key}.{field}"
    return ""


def _classes(document: dict[str, Any], config: Any) -> tuple[str, Any]:
    """Return the name of the class that a config names, "" if none, and the class that is built.

    A class is built as it is named if its loss needs labels for the tokens alone. If transformers has no such class, or
    none is named, the model that generates text is built, if there is one for this config. For all others, the model
    without a head is built.

    Raises:
        ValueError: the name is no text, or that of a class for another kind of config, or there is no class.
    """
    import transformers

    names = document.get("architectures") or [""]
    named = names[0] if isinstance(names, list) else names
    if not isinstance(named, str):
        raise ValueError(f"architectures must be a list with the name of a class, not {quote(names)}")
    of_tokens = not named or any(kind in named for kind in _OF_TOKENS)
    known = getattr(transformers, named, None) if named else None
    if of_tokens and (wanted := getattr(known, "config_class", None)) is not None:
        if not isinstance(config, wanted):
            raise ValueError(f"architectures: {named} is no class of model_type {quote(document['model_type'])}")
        return named, known
    generating = transformers.AutoModelForCausalLM._model_mapping
    mapping = generating if of_tokens and type(config) in generating else transformers.AutoModel._model_mapping
    if type(config) not in mapping:
        raise ValueError("it has no class of such models; give a FACTORY")
    base = mapping[type(config)]
    return named, base[0] if isinstance(base, tuple) else base
