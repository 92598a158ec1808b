"""The checkpoints that come with the package, with their model card.

Input: the name of a learned placer. Output: the path of its checkpoint.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["pretrained_path"]


def pretrained_path(placer: str) -> Path | None:
    """The checkpoint of a learned placer that comes with the package; None if none does."""
    folder = Path(__file__).parent
    return next((path for path in folder.glob("*.safetensors") if path.stem == placer), None)
