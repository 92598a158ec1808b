"""The graph families of Placeto: training steps of PyTorch models, captured by `placeto.capture.trace`.

The graphs of `SHIPPED` come with the package; those of `MODELS` are captured when they are first loaded. Looking up a
family imports only its own model, and loading a shipped graph imports no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import Any

from graphs.family import SPLITS, Family
from graphs.models import ModelFamily
from graphs.shipped import SHIPPED
from graphs.training_step import TrainingStep

_MODULES = {
    "inception_v3": "inception_v3",
    "nasnet": "nasnet",
    "resnet": "resnet",
    "amoebanet": "amoebanet",
    "rnnlm": "rnnlm",
    "rnnlm-2": "rnnlm",
    "rnnlm-4": "rnnlm",
    "rnnlm-8": "rnnlm",
    "gnmt": "gnmt",
    "gnmt-2": "gnmt",
    "gnmt-4": "gnmt",
    "gnmt-8": "gnmt",
    "transformer_xl": "transformer_xl",
    "transformer_xl-2": "transformer_xl",
    "transformer_xl-4": "transformer_xl",
    "transformer_xl-8": "transformer_xl",
    "wavenet": "wavenet",
    "wavenet-2x18": "wavenet",
    "wavenet-4x36": "wavenet",
    "bert": "bert",
    "llama": "llama",
    "moe": "moe",
    "unet": "unet",
}
"""Family -> module of this package that has it among its `FAMILIES`."""


class _Families(Mapping[str, Any]):
    """Families by name; the module of a family is imported when the family is looked up."""

    def __init__(self, ready: Mapping[str, Family], modules: Mapping[str, str]) -> None:
        self.ready, self.modules = ready, modules

    def __getitem__(self, name: str) -> Any:
        if name in self.ready:
            return self.ready[name]
        families = import_module(f"graphs.{self.modules[name]}").FAMILIES
        return next(family for family in families if family.name == name)

    def __iter__(self) -> Iterator[str]:
        return chain(self.ready, self.modules)

    def __contains__(self, name: object) -> bool:
        return name in self.ready or name in self.modules

    def __len__(self) -> int:
        return len(self.ready) + len(self.modules)


MODELS: Mapping[str, ModelFamily] = _Families({}, _MODULES)
FAMILIES: Mapping[str, Family | ModelFamily] = _Families(SHIPPED, _MODULES)

__all__ = ["FAMILIES", "MODELS", "SHIPPED", "SPLITS", "Family", "ModelFamily", "TrainingStep"]
