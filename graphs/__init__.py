"""The graph families that ship with Placeto: training steps of PyTorch models, captured by `placeto.capture`."""

from graphs import cifar10, nmt, ptb
from graphs.family import SPLITS, Family, TrainingStep

FAMILIES: dict[str, Family] = {family.name: family for family in (cifar10.FAMILY, ptb.FAMILY, nmt.FAMILY)}

__all__ = ["FAMILIES", "SPLITS", "Family", "TrainingStep"]
