"""Learning: from a config to a checkpoint.

In come problems of a family and a config; a trainer lets a learner roll out episodes, work out losses and update a
policy, on one process or several ranks; out go checkpoints and tensorboard curves.
`trainer.train` is imported where something is trained: tensorboard and matplotlib take two seconds to load.
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
