"""Training of policies: from a config to a checkpoint.

Input: problems of a family, and a config. Output: checkpoints and tensorboard curves. The trainer repeats iterations.
In each, a learner rolls out episodes, computes a loss and updates the policy, in one process or in several ranks.
`trainer.train` is only imported where a policy is trained, because tensorboard and matplotlib take two seconds to load.
"""

from placeto.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from placeto.training.config import (
    LearningConfig,
    OneShotLearningConfig,
    OneShotTrainConfig,
    TrainConfig,
    default_config,
)

__all__ = [
    "CheckpointError",
    "LearningConfig",
    "OneShotLearningConfig",
    "OneShotTrainConfig",
    "TrainConfig",
    "default_config",
    "load_checkpoint",
    "save_checkpoint",
]
