"""Training of policies: from a config to a checkpoint.

Input: problems of a family, and a config. Output: checkpoints and tensorboard curves. The trainer repeats iterations.
In each, a learner rolls out episodes, computes a loss and updates the policy, in one process or in several ranks.
`trainer.train` isn't among the names here, because it imports torch-geometric and tensorboard, which takes seconds.
"""

from typing import TYPE_CHECKING

from placeto.plumbing.lazily import lazily

if TYPE_CHECKING:
    from placeto.errors import TrainingError
    from placeto.training.checkpoint import load_checkpoint, save_checkpoint
    from placeto.training.config import (
        LearningConfig,
        OneShotLearningConfig,
        OneShotTrainConfig,
        TrainConfig,
        default_config,
    )

_NAMES = {
    "checkpoint": ("CheckpointError", "TrainingError", "load_checkpoint", "save_checkpoint"),
    "config": ("LearningConfig", "OneShotLearningConfig", "OneShotTrainConfig", "TrainConfig", "default_config"),
}

__all__ = [
    "LearningConfig",
    "OneShotLearningConfig",
    "OneShotTrainConfig",
    "TrainConfig",
    "TrainingError",
    "default_config",
    "load_checkpoint",
    "save_checkpoint",
]

__getattr__, __dir__ = lazily(globals(), _NAMES)
