"""What defines a training run: the same dataclasses are the config of the API, the CLI and the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from placeto.env import EnvConfig
from placeto.policies import POLICIES
from placeto.policies.placeto import PlacetoConfig


@dataclass(frozen=True)
class LearningConfig:
    """How a policy learns."""

    warmup: float = 0.6
    """Share of the training spent on the supervised stage, which fits the exact effect of single moves."""
    labels: int = 24
    """Moves of each visited state simulated for the supervised stage."""
    warmup_lr: float = 2e-3
    """Learning rate of the supervised stage."""
    lr: float = 3e-4
    """Learning rate of the reinforcement stage, falling to zero."""
    graphs: int = 4
    """Graphs of an iteration."""
    replicas: int = 8
    """Episodes of each graph of an iteration, from one start; their mean return is the reward baseline."""
    moves: int = 40
    """Moves of an episode in training."""
    temperature: float = 0.3
    """Temperature at which episodes are sampled while training; the paper's is 1."""
    algorithm: Literal["ppo", "reinforce"] = "ppo"
    """Proximal policy optimisation, or the paper's REINFORCE."""
    baseline: Literal["replicas", "steps"] = "replicas"
    """Reward baseline: mean over replicas, or the paper's mean at each step over earlier rounds of the graph."""
    baseline_rounds: int = 10
    """Rounds that the "steps" baseline looks back."""
    reward: Literal["best-so-far", "improvement"] = "best-so-far"
    """Drop of the best makespan met, or the paper's drop of the current one."""
    intermediate_rewards: bool = True
    """Whether rewards are paid at every move, or all at the end."""
    discount: float = 0.98
    """Discount of rewards, per move."""
    clip: float = 0.2
    """Clipping range of PPO's ratio."""
    epochs: int = 2
    """Passes of PPO over an iteration's moves."""
    minibatch: int = 8
    """Moves of all episodes that go into one gradient step of PPO."""
    entropy: float = 1e-3
    """Weight of the entropy bonus."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""


PAPER_LEARNING = LearningConfig(
    warmup=0.0,
    temperature=1.0,
    algorithm="reinforce",
    baseline="steps",
    reward="improvement",
    discount=1.0,
    epochs=1,
    lr=1e-3,
)
"""The recipe of the Placeto paper: REINFORCE, improvement reward, reward baseline by step.

Use it with the paper's features, pooling and order, and `tolerance=None`.
"""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that defines a training run; it travels inside the checkpoint."""

    out: str
    """Directory of the run: checkpoint and tensorboard curves."""
    minutes: float | None = None
    """Stop after so many minutes."""
    iterations: int | None = None
    """Stop after so many iterations; with neither limit, 10 minutes."""
    seed: int = 0
    """Seed of all randomness."""
    placer: str = "placeto"
    """Which learned placer."""
    threads: int = 1
    """CPU threads of the network, whose tensors are small; simulations use all cores. Sums may depend on it."""
    validate_every: int = 5
    """Iterations between validations; the best one's parameters are what the placer uses."""
    save_every: int = 5
    """Iterations between checkpoints."""
    policy: PlacetoConfig = field(default_factory=PlacetoConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)


def default_config(placer: str, out: str) -> TrainConfig:
    """The settings that a learned placer is trained with unless others are given.

    Raises:
        ConfigError: the learned placer is unknown.
    """
    _check_placer(placer)
    return TrainConfig(out, placer=placer)


class ConfigError(ValueError):
    """A setting out of its range; the message names it and says what would be valid."""


def check_config(config: TrainConfig) -> None:
    """Refuse settings that can't work.

    Raises:
        ConfigError: one is out of its range, or the learned placer is unknown.
    """
    _check_placer(config.placer)
    learning, policy = config.learning, config.policy
    at_least_one = {
        "threads": config.threads,
        "validate_every": config.validate_every,
        "save_every": config.save_every,
        "learning.labels": learning.labels,
        "learning.graphs": learning.graphs,
        "learning.moves": learning.moves,
        "learning.baseline_rounds": learning.baseline_rounds,
        "learning.epochs": learning.epochs,
        "learning.minibatch": learning.minibatch,
        "policy.hidden": policy.hidden,
        "policy.fixed_devices": policy.fixed_devices,
    }
    for name, value in at_least_one.items():
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}")
    least = 2 if learning.baseline == "replicas" else 1
    if learning.replicas < least:
        raise ConfigError(f"learning.replicas must be at least {least} here, not {learning.replicas}")
    if config.seed < 0 or policy.rounds < 0:
        raise ConfigError(f"seed and policy.rounds must be at least 0, not {config.seed} and {policy.rounds}")
    if not (learning.temperature > 0 and learning.discount > 0):
        raise ConfigError("learning.temperature and learning.discount must be above 0")
    if not 0 <= learning.warmup <= 1:
        raise ConfigError(f"learning.warmup is a share, 0 to 1, not {learning.warmup}")


def _check_placer(placer: str) -> None:
    if placer not in POLICIES:
        raise ConfigError(f"placer {placer!r} can't be trained; learned placers: {', '.join(POLICIES)}")
