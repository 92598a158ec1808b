"""What defines a training run: the same dataclasses are the config of the API, the CLI and the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from placeto.environment.config import EnvConfig
from placeto.environment.rewards import placement_reward_names, reward_names
from placeto.policies.external import ExternalPolicy, find_policy, policy_names
from placeto.policies.guided_search import GuidedConfig
from placeto.policies.one_shot.gdp import GdpConfig
from placeto.policies.one_shot.grouper import GrouperConfig
from placeto.policies.one_shot.mlp import MlpConfig
from placeto.policies.one_shot.seq2seq import Seq2SeqConfig
from placeto.policies.placeto import PlacetoConfig
from placeto.policies.placeto_paper import PlacetoPaperConfig
from placeto.training.settings import ConfigError, check_device, check_settings

OneShotConfig = Seq2SeqConfig | GrouperConfig | GdpConfig | MlpConfig


@dataclass(frozen=True)
class LearningConfig:
    """How an iterative policy learns: a supervised stage, then reinforcement if it is asked for.

    The supervised stage fits the exact effect of single moves in states that episodes and annealing have met.
    Reinforcement improves whole episodes.
    """

    reinforcement: float = 0.0
    """Share of the training, its end, spent on reinforcement; the rest is the supervised stage."""
    graphs: int = 4
    """Graphs of an iteration."""
    starts: Literal["heuristics", "single"] = "heuristics"
    """Where episodes begin: placements of the cheap heuristics, or all on one device, to learn from scratch."""
    temperature: float = 0.3
    """Temperature at which episodes are sampled while training."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    average: float = 0.8
    """How much of itself the moving average of the parameters keeps in an iteration; the average is what validation
    judges and a placer uses. 0 = the parameters as they are."""

    supervised_lr: float = 2e-3
    """Learning rate of the supervised stage, falling to a tenth."""
    supervised_replicas: int = 1
    """Episodes of each graph of an iteration of the supervised stage, from different starts."""
    supervised_moves: int = 8
    """Moves of an episode of the supervised stage."""
    labels: int = 96
    """Moves of each visited state simulated for their exact effect."""
    replay: int = 2000
    """Labelled states that are remembered; each gradient step fits as many of them as there are episodes, drawn at
    random. 0 = an iteration's own, one move of all episodes after the other."""
    fits: int = 2
    """Times that each state is fitted, on average, where states are remembered."""
    annealed: float = 0.7
    """Share of the supervised stage's iterations whose episodes begin where annealing has been, somewhere within a
    sweep: the states in which guided search asks the policy."""
    parts: float = 0.4
    """Share of the training problems whose groups are split into parts, as guided search splits them."""
    joined: float = 0.25
    """Share of the training problems whose groups are joined, as guided search joins them."""

    lr: float = 3e-4
    """Learning rate of reinforcement, falling to zero."""
    replicas: int = 8
    """Episodes of each graph of an iteration of reinforcement, from one start; their mean return is the reward
    baseline."""
    moves: int | None = 40
    """Moves of an episode of reinforcement; None = as many as the largest training graph has groups."""
    reward: str = "best-so-far"
    """Drop of the best makespan met at every move; improvement, the drop of the current one; at-the-end, all of it at
    the last move; or another of `placeto list rewards`."""
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

    @property
    def supervised(self) -> float:
        """Share of the training spent on the supervised stage."""
        return 1.0 - self.reinforcement

    @property
    def algorithm(self) -> Literal["ppo", "reinforce"]:
        """Proximal policy optimisation."""
        return "ppo"


@dataclass(frozen=True)
class TraversalLearningConfig:
    """How the policy of the Placeto paper learns: REINFORCE on whole traversals of one graph an iteration.

    What differs from the published code, and why, stands in docs/placeto-paper.md.
    """

    episodes: int = 8
    """Traversals of the graph, one gradient step."""
    lr: float = 3e-3
    """Learning rate, falling linearly to a tenth."""
    discount: float = 0.5
    """Discount of rewards, per move."""
    baseline_rounds: int = 10
    """Rounds of the same graph over which the returns at a step are averaged: the reward baseline."""
    entropy: float = 0.02
    """Weight of the entropy bonus, falling linearly to zero."""
    max_grad_norm: float = 1.25
    """Gradients are scaled down to this norm."""

    @property
    def average(self) -> float:
        """There is no moving average: validation judges the parameters as they are."""
        return 0.0


@dataclass(frozen=True)
class OneShotLearningConfig:
    """How a policy learns that places whole graphs at once."""

    algorithm: Literal["ppo", "reinforce"] = "ppo"
    """Proximal policy optimisation, or REINFORCE, as in the first papers."""
    lr: float = 1e-3
    """Learning rate."""
    falling: bool = True
    """Whether learning rate and entropy bonus fall to zero."""
    graphs: int = 4
    """Graphs of an iteration."""
    samples: int = 16
    """Placements of each graph of an iteration."""
    reward: str = "sqrt"
    """Minus the square root of the makespan; log, its logarithm; linear, the makespan, each relative to the best single
    device; or another of `placeto list placement-rewards`."""
    failed: float | None = None
    """Reward of a placement that doesn't fit into memory, from which the moving baseline begins too; none = the
    makespan counts more the less it fits."""
    failures: int | None = None
    """Iterations after which placements that don't fit teach nothing; none = they always do."""
    baseline: Literal["moving", "trials", "samples", "quantile"] = "samples"
    """Reward baseline: moving average over earlier rounds of the graph, mean over all its earlier rounds, over the
    samples of this one, or their upper quantile, below which samples teach nothing."""
    quantile: float = 0.75
    """Which quantile: 0.75 learns from the best quarter."""
    decay: float = 0.8
    """How much of the moving average stays, per round of the graph."""
    normalise: bool = True
    """Whether advantages are divided by their standard deviation."""
    clip: float = 0.2
    """Clipping range of PPO's ratio."""
    epochs: int = 2
    """Passes of PPO over an iteration's placements."""
    minibatch: int = 2
    """Graphs that go into one gradient step of PPO."""
    entropy: float = 0.02
    """Weight of the entropy bonus."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    average: float = 0.0
    """How much of itself the moving average of the parameters keeps in an iteration; 0 = the parameters as they are."""
    soften: float = 1.0
    """Temperature by which the logits of a checkpoint to begin with are divided: a trained policy is too sure of its
    choices to try others."""


@dataclass(frozen=True)
class RunConfig:
    """What every training run has, whatever its policy; the config travels inside the checkpoint."""

    out: str
    """Directory of the run: checkpoint and tensorboard curves."""
    minutes: float | None = None
    """Stop after so many minutes; what comes before the first iteration, the preparation of the graphs, is not among
    them."""
    iterations: int | None = None
    """Stop after so many iterations."""
    simulations: int | None = None
    """Stop after the iteration in which so many placements have been simulated; without any limit, 10 minutes."""
    seed: int = 0
    """Seed of all randomness."""
    placer: str = "placeto"
    """Which learned placer."""
    threads: int = 1
    """CPU threads of the network, whose tensors are small, and of a rank's simulations where there are several ranks;
    a single process simulates on all cores. Sums may depend on it."""
    costs: str = "efficiency"
    """How long ops take in the problems that `placeto train` makes: efficiency, roofline, or a file of costs."""
    device: str = "cpu"
    """Where the network computes: cpu, or cuda, of which each rank takes one GPU."""
    validate_every: int = 10
    """Iterations between validations; the best one's parameters are what the placer uses."""
    save_every: int = 5
    """Iterations between checkpoints."""


@dataclass(frozen=True)
class TrainConfig(RunConfig):
    """Everything that defines the training of an iterative policy."""

    policy: Any = field(default_factory=PlacetoConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    search: GuidedConfig = field(default_factory=GuidedConfig)
    """How the trained policy guides a search; training takes no notice of it."""


@dataclass(frozen=True)
class TraversalTrainConfig(RunConfig):
    """Everything that defines the training of the Placeto paper's policy."""

    placer: str = "placeto-paper"
    """Which learned placer."""
    policy: PlacetoPaperConfig = field(default_factory=PlacetoPaperConfig)
    learning: TraversalLearningConfig = field(default_factory=TraversalLearningConfig)


@dataclass(frozen=True)
class OneShotTrainConfig(RunConfig):
    """Everything that defines the training of a one-shot policy."""

    placer: str = "seq2seq"
    """Which learned placer."""
    policy: Any = field(default_factory=Seq2SeqConfig)
    learning: OneShotLearningConfig = field(default_factory=OneShotLearningConfig)


AnyTrainConfig = TrainConfig | TraversalTrainConfig | OneShotTrainConfig


ONE_SHOT_LEARNING = {
    "seq2seq": OneShotLearningConfig(entropy=0.005),
    "grouper": OneShotLearningConfig(),
    "gdp": OneShotLearningConfig(entropy=0.05),
    "mlp": OneShotLearningConfig(entropy=0.05),
}
"""Recipes of the one-shot placers."""
FINE_TUNING: dict[str, dict[str, Any]] = {
    "placeto": {"reinforcement": 1.0, "parts": 0.0, "joined": 0.0},
    "gdp": {"epochs": 4, "lr": 5e-4, "soften": 3.0},
}
"""What differs from a placer's recipe where training begins with a checkpoint, and placements count."""


_COUNT = (1, 1e9)
_SHARE = (0.0, 1.0)
RANGES: dict[str, tuple[float, float]] = {
    "minutes": (0.0, 1e9),
    "iterations": (0, 1e18),
    "simulations": (0, 1e18),
    "seed": (0, 2**63 - 1),
    "threads": (1, 1024),
    "learning.temperature": (1e-6, 1e6),
    "learning.soften": (1e-3, 1e3),
    "learning.clip": (0.0, 1e3),
    "learning.entropy": (0.0, 1e3),
    "learning.max_grad_norm": (0.0, 1e6),
    "learning.quantile": (0.0, 0.999),
    "learning.decay": (0.0, 0.999),
    "learning.failed": (-1e9, 0.0),
    "learning.failures": (0, 1e18),
    "learning.replay": (0, 1e9),
    "policy.hidden": (1, 65_536),
    "policy.rounds": (0, 100),
    "policy.layers": (0, 100),
    "policy.bound": (0.0, 1e6),
    "policy.temperature": (1e-6, 1e6),
    "policy.groups": (1, 65_536),
    "policy.max_devices": (1, 65_536),
    "policy.devices": (1, 65_536),
    "policy.change_weight": (0.0, 1e6),
    "policy.prior": (0.0, 1e6),
    "env.tolerance": (0.0, 1e6),
    "search.worth_rounding": (0.0, 1e9),
    "search.scales": _SHARE,
    **{f"search.{name}": _COUNT for name in ("in_vain", "tries", "kept")},
    **{f"learning.{name}": _SHARE for name in ("reinforcement", "parts", "joined", "annealed", "average")},
    **{f"learning.{name}": _SHARE for name in ("lr", "supervised_lr", "discount")},
    **{f"learning.{name}": _COUNT for name in ("graphs", "epochs", "minibatch", "labels", "fits", "moves")},
    **{f"learning.{name}": _COUNT for name in ("supervised_moves", "supervised_replicas")},
    **{f"learning.{name}": _COUNT for name in ("replicas", "episodes", "baseline_rounds")},
    **dict.fromkeys(("validate_every", "save_every", "policy.heads", "policy.segment", "learning.samples"), _COUNT),
}
"""Smallest and largest value of settings."""


def default_config(placer: str, out: str) -> AnyTrainConfig:
    """The settings that a learned placer is trained with unless others are given.

    Raises:
        ConfigError: the learned placer is unknown.
    """
    _check_placer(placer)
    entry = find_policy(placer)
    policy = entry.config()
    if isinstance(entry, ExternalPolicy):
        if entry.kind == "one-shot":
            return OneShotTrainConfig(
                out, placer=placer, policy=policy, learning=entry.learning or OneShotLearningConfig()
            )
        learning = entry.learning or LearningConfig(reinforcement=float(not hasattr(entry.policy, "changes")))
        return TrainConfig(out, placer=placer, policy=policy, env=entry.env, learning=learning)
    if isinstance(policy, PlacetoConfig):
        return TrainConfig(out, placer=placer, policy=policy)
    if isinstance(policy, PlacetoPaperConfig):
        return TraversalTrainConfig(out, placer=placer, policy=policy)
    return OneShotTrainConfig(out, placer=placer, policy=policy, learning=ONE_SHOT_LEARNING[placer])


def check_config(config: AnyTrainConfig) -> None:
    """Refuse settings that can't work.

    Raises:
        ConfigError: one is out of its range, or the learned placer is unknown.
    """
    check_settings(config, _ranges(config.policy))
    _check_placer(config.placer)
    expected = find_policy(config.placer).config
    if not isinstance(config.policy, expected):
        raise ConfigError(f"placer {config.placer!r} needs a {expected.__name__} as policy, not {config.policy!r}")
    if not config.out.strip():
        raise ConfigError("out is empty: give the directory of the run")
    if isinstance(config, TraversalTrainConfig) and config.device != "cpu":
        raise ConfigError(f"device must be cpu for {config.placer}, whose network is too narrow for a GPU")
    check_device(config.device)
    if isinstance(config, OneShotTrainConfig):
        _check_one_shot(config)
    elif isinstance(config, TrainConfig):
        _check_iterative(config)


def check_loaded(**parts: Any) -> None:
    """Refuse settings of a checkpoint that can't work: the dataclasses of policy, environment and search.

    Raises:
        ConfigError: one is out of its range.
    """
    for part, settings in parts.items():
        check_settings(settings, _ranges(settings), f"{part}.")
        if isinstance(settings, OneShotConfig):
            _check_widths(settings)


def _check_iterative(config: TrainConfig) -> None:
    learning = config.learning
    if learning.replicas < 2:
        raise ConfigError(f"learning.replicas must be at least 2, not {learning.replicas}")
    if learning.reinforcement < 1 and not hasattr(find_policy(config.placer).policy, "changes"):
        raise ConfigError(f"learning.reinforcement must be 1 for {config.placer}, which predicts no effects of "
                          f"moves, not {learning.reinforcement}")  # fmt: skip
    _check_reward(learning.reward, reward_names())
    episodes = learning.graphs * learning.supervised_replicas
    if learning.replay and learning.replay < episodes:
        raise ConfigError(f"learning.replay must be 0 or at least the {episodes} episodes of an iteration, "
                          f"not {learning.replay}")  # fmt: skip


def _check_one_shot(config: OneShotTrainConfig) -> None:
    learning, policy = config.learning, config.policy
    _check_reward(learning.reward, placement_reward_names())
    if learning.baseline in ("samples", "quantile") and learning.samples < 2:
        raise ConfigError(f"learning.samples must be at least 2 here, not {learning.samples}")
    if isinstance(policy, OneShotConfig):
        _check_widths(policy)


def _check_reward(name: str, known: list[str]) -> None:
    if name not in known:
        raise ConfigError(f"learning.reward must be {' or '.join(known)}, not {name!r:.60}")


def _check_widths(policy: OneShotConfig) -> None:
    if policy.hidden % 2:
        raise ConfigError(f"policy.hidden must be even, not {policy.hidden}")
    if isinstance(policy, GdpConfig) and policy.hidden % policy.heads:
        raise ConfigError(f"policy.hidden must be a multiple of policy.heads {policy.heads}, not {policy.hidden}")


def _ranges(settings: Any) -> dict[str, tuple[float, float]]:
    """Those of the settings of another package's policy are its own affair."""
    ours = type(settings).__module__.startswith("placeto.")
    return {name: limits for name, limits in RANGES.items() if ours or not name.startswith("policy.")}


def _check_placer(placer: str) -> None:
    if placer not in policy_names():
        raise ConfigError(f"placer {placer!r} can't be trained; learned placers: {', '.join(policy_names())}")
