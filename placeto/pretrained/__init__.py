"""The checkpoints that come with the package, with their model card.

Input: the name of a learned placer. Output: the path of its checkpoint.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["TRAINED_ON", "pretrained_path"]

TRAINED_ON = {
    "cifar10": 24,
    "nmt": 24,
    "resnet": 6,
    "rnnlm-2": 3,
    "rnnlm-4": 3,
    "transformer_xl-2": 3,
    "transformer_xl-4": 3,
    "wavenet": 4,
    "nasnet": 6,
    "amoebanet": 6,
    "gnmt-2": 3,
    "llama": 3,
    "unet": 6,
    "moe": 6,
}
"""Family -> of how many of its training graphs, the first ones, the policy of the package learned."""


def pretrained_path(placer: str) -> Path | None:
    """The checkpoint of a learned placer that comes with the package; None if none does."""
    folder = Path(__file__).parent
    return next((path for path in folder.glob("*.safetensors") if path.stem == placer), None)
