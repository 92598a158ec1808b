"""The graph families of Placeto: training steps of PyTorch models, captured by `placeto.capture.trace`.

The graphs of `SHIPPED` come with the package; those of `MODELS` are captured when they are first asked for.
"""

from graphs import (
    amoebanet,
    bert,
    cifar10,
    gnmt,
    inception_v3,
    llama,
    moe,
    nasnet,
    nmt,
    ptb,
    resnet,
    rnnlm,
    transformer_xl,
    unet,
    wavenet,
)
from graphs.family import SPLITS, Family, TrainingStep
from graphs.models import ModelFamily

SHIPPED: dict[str, Family] = {family.name: family for family in (cifar10.FAMILY, ptb.FAMILY, nmt.FAMILY)}
MODELS: dict[str, ModelFamily] = {
    family.name: family
    for family in (
        inception_v3.FAMILY,
        nasnet.FAMILY,
        resnet.FAMILY,
        amoebanet.FAMILY,
        *(family for model in (rnnlm, gnmt, transformer_xl, wavenet) for family in (model.ALL_DEPTHS, *model.DEPTHS)),
        bert.FAMILY,
        llama.FAMILY,
        moe.FAMILY,
        unet.FAMILY,
    )
}
FAMILIES: dict[str, Family | ModelFamily] = {**SHIPPED, **MODELS}

__all__ = ["FAMILIES", "MODELS", "SHIPPED", "SPLITS", "Family", "ModelFamily", "TrainingStep"]
