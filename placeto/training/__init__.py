"""Learning: from a config to a checkpoint.

In come problems of a family and a config; a trainer lets a learner roll out episodes, work out losses and update a
policy, on one process or several ranks; out go checkpoints and tensorboard curves.
`trainer.train` is imported where something is trained: tensorboard and matplotlib take two seconds to load.
"""
