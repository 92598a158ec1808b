"""The settings of a training run. The same dataclasses are the config of the API, the CLI and the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from placeto.environment.env_config import EnvConfig
from placeto.environment.rewards import placement_reward_names, reward_names
from placeto.errors import TrainingError
from placeto.plumbing.ranges import Count, Limit, Share, Temperature, Weight, within
from placeto.policies.external import ExternalPolicy, find_policy, policy_names
from placeto.policies.guided_search import GuidedConfig
from placeto.policies.one_shot.constructive import ConstructiveConfig
from placeto.policies.one_shot.gdp import GdpConfig
from placeto.policies.one_shot.grouper import GrouperConfig
from placeto.policies.one_shot.mlp import MlpConfig
from placeto.policies.one_shot.seq2seq import Seq2SeqConfig
from placeto.policies.placeto import PlacetoConfig
from placeto.policies.placeto_paper import PlacetoPaperConfig
from placeto.training.settings import check_device, check_settings

OneShotConfig = Seq2SeqConfig | GrouperConfig | GdpConfig | ConstructiveConfig | MlpConfig


@dataclass(frozen=True)
class LearningConfig:
    """How an iterative policy learns: a supervised stage, then reinforcement if `reinforcement` is above 0.

    The supervised stage fits the exact effect of single moves in states that episodes and annealing have met.
    Reinforcement improves whole episodes. If `reinforcement` is 0, these settings have no effect: `lr`, `replicas`,
    `moves`, `reward`, `discount`, `clip`, `epochs`, `minibatch`, `entropy`. If it is 1, these have none:
    `supervised_lr`, `supervised_replicas`, `supervised_moves`, `labels`, `replay`, `fits`, `annealed`.
    """

    reinforcement: Share = 0.0
    """Share of the training that is reinforcement, at its end; the rest is the supervised stage."""
    graphs: Count = 4
    """Training problems of an iteration, each a graph on a cluster."""
    starts: Literal["heuristics", "single"] = "heuristics"
    """Where episodes begin: with placements of the cheap heuristics, or with all ops on one device."""
    temperature: Temperature = 0.3
    """Temperature at which moves are drawn in training: the lower, the more often the best scored move is drawn."""
    max_grad_norm: Weight = 1.0
    """Gradients with a larger norm are scaled down to this norm."""
    average: Share = 0.8
    """Decay per iteration of the moving average of the parameters. Validation and placers use the average.
    0 = the parameters as they are."""

    supervised_lr: Share = 2e-3
    """Learning rate of the supervised stage, falling to a tenth."""
    supervised_replicas: Count = 1
    """Episodes of each graph of an iteration of the supervised stage, from different starts."""
    supervised_moves: Count = 8
    """Moves of an episode of the supervised stage."""
    labels: Count = 96
    """How many moves of each visited state are simulated for their exact effects."""
    replay: Annotated[int, within(0, 1e9)] = 2000
    """How many labelled states are remembered. Each gradient step fits as many states as an iteration has episodes;
    they are drawn at random. 0 = no states are remembered, and only the states of the iteration are fitted."""
    fits: Count = 2
    """How often each remembered state is fitted, on average."""
    annealed: Share = 0.7
    """Share of the iterations of the supervised stage whose episodes begin with placements that annealing met, because
    guided search evaluates the policy in such states. In the others they begin as `starts` says."""
    parts: Share = 0.4
    """Share of the training problems whose groups are split into parts, as guided search splits them."""
    joined: Share = 0.25
    """Share of the training problems whose groups are joined, as guided search joins them."""

    lr: Share = 3e-4
    """Learning rate of reinforcement, falling to zero."""
    replicas: Count = 8
    """Episodes of each graph of an iteration of reinforcement, from one start; their mean return is the reward
    baseline."""
    moves: Count | None = 40
    """Moves of an episode of reinforcement. None = as many as the largest training problem has groups."""
    reward: str = "best-so-far"
    """What a move is worth. best-so-far: how much it lowers the best makespan met. improvement: how much it lowers the
    present makespan. at-the-end: the last move is worth all of the drop. Or another of `placeto list rewards`."""
    discount: Share = 0.98
    """Discount of rewards, per move."""
    clip: Annotated[float, within(0.0, 1e3)] = 0.2
    """Clipping range of PPO's ratio."""
    epochs: Count = 2
    """Passes of PPO over an iteration's moves."""
    minibatch: Count = 8
    """Moves of all episodes that go into one gradient step of PPO."""
    entropy: Annotated[float, within(0.0, 1e3)] = 1e-3
    """Weight of the entropy bonus."""

    @property
    def supervised(self) -> float:
        """Share of the training spent on the supervised stage."""
        return 1.0 - self.reinforcement

    @property
    def algorithm(self) -> Literal["ppo", "reinforce"]:
        """The algorithm of the reinforcement stage, which is always proximal policy optimisation."""
        return "ppo"


@dataclass(frozen=True)
class TraversalLearningConfig:
    """How the policy of the Placeto paper learns: REINFORCE on whole traversals of one graph an iteration.

    docs/placeto-paper.md says what differs from the published code, and why.
    """

    episodes: Count = 8
    """Traversals of the graph of an iteration. An iteration is one gradient step."""
    lr: Share = 3e-3
    """Learning rate, falling linearly to a tenth."""
    reward: str = "improvement"
    """Reward of a move, in tenths: improvement, as published, or another of `placeto list rewards`."""
    discount: Share = 0.5
    """Discount of rewards, per move."""
    baseline_rounds: Count = 10
    """Rounds of the same graph over which the returns at a step are averaged: the reward baseline. 1 = only the
    traversals of the iteration."""
    entropy: Annotated[float, within(0.0, 1e3)] = 0.02
    """Weight of the entropy bonus, falling linearly to zero."""
    max_grad_norm: Weight = 1.25
    """Gradients with a larger norm are scaled down to this norm."""

    @property
    def average(self) -> float:
        """Decay of the moving average of the parameters: 0, because validation uses the parameters as they are."""
        return 0.0


@dataclass(frozen=True)
class OneShotLearningConfig:
    """How a one-shot policy learns."""

    algorithm: Literal["ppo", "reinforce"] = "ppo"
    """Proximal policy optimisation, or REINFORCE, as in the first papers."""
    lr: Share = 1e-3
    """Learning rate."""
    falling: bool = True
    """Whether the learning rate and the weight of the entropy bonus fall to zero."""
    graphs: Count = 4
    """Training problems of an iteration, each a graph on a cluster."""
    samples: Count = 16
    """Placements of each graph of an iteration."""
    reward: str = "sqrt"
    """What a placement is worth: minus the square root (sqrt) or the logarithm (log) of its makespan, relative to the
    best single device. Or another of `placeto list placement-rewards`."""
    failed: Annotated[float, within(-1e9, 0.0)] | None = None
    """Reward of a placement that doesn't fit into memory, which is also the first value of the moving baseline. none =
    the reward of its penalised makespan."""
    failures: Limit | None = None
    """After this number of iterations, placements that don't fit are left out of the training. None = never."""
    baseline: Literal["moving", "trials", "samples", "quantile"] = "samples"
    """Reward baseline. moving: a moving average over the earlier rounds of the graph. trials: the mean over all its
    earlier rounds. samples: the mean over the samples of this round. quantile: their upper quantile; samples below it
    are left out."""
    quantile: Annotated[float, within(0.0, 0.999)] = 0.75
    """Which quantile is the baseline: with 0.75, the policy learns from the best quarter of the samples."""
    decay: Annotated[float, within(0.0, 0.999)] = 0.8
    """Decay of the moving baseline, per round of the graph."""
    normalise: bool = True
    """Whether advantages are divided by their standard deviation."""
    by_graph: bool = False
    """Whether it is that of the samples of the same graph, in place of that of all samples of the iteration."""
    clip: Annotated[float, within(0.0, 1e3)] = 0.2
    """Clipping range of PPO's ratio."""
    epochs: Count = 2
    """Passes of PPO over an iteration's placements."""
    minibatch: Count = 2
    """Graphs that go into one gradient step of PPO."""
    entropy: Annotated[float, within(0.0, 1e3)] = 0.02
    """Weight of the entropy bonus."""
    max_grad_norm: Weight = 1.0
    """Gradients with a larger norm are scaled down to this norm."""
    average: Share = 0.0
    """Decay per iteration of the moving average of the parameters. Validation and placers use the average.
    0 = the parameters as they are."""
    imitation: Share = 0.0
    """Share of the training, at its beginning, in which the policy learns to repeat the best placement known of each
    graph. At the beginning, that is what annealing of groups found, which counts as a placement met. 0, or a limit of
    simulations and none of iterations: the policy learns from the rewards of its samples alone."""
    searched: Count = 1000
    """Simulations of each training graph by which annealing finds what is repeated. `simulations` excludes them."""
    soften: Annotated[float, within(1e-3, 1e3)] = 1.0
    """With --checkpoint: the logits of the checkpoint's policy are divided by this temperature before they are bounded,
    so that it also tries other choices."""


@dataclass(frozen=True)
class RunConfig:
    """The settings that every training run has, whatever its policy. The checkpoint contains all settings."""

    out: str
    """Directory of the run: checkpoint and tensorboard curves."""
    minutes: Annotated[float, within(1e-6, 1e9)] | None = None
    """Stop after this number of minutes, counted from the first iteration. The preparation of the graphs is not
    counted. If neither `minutes` nor `iterations` nor `simulations` is given, training stops after 10 minutes."""
    iterations: Annotated[int, within(1, 1e18)] | None = None
    """Stop after this number of iterations."""
    simulations: Annotated[int, within(1, 1e18)] | None = None
    """Stop after the iteration in which the number of simulated placements reaches this number."""
    seed: Annotated[int, within(0, 2**63 - 1)] = 0
    """Seed of all randomness."""
    placer: str = "placeto"
    """The learned placer to train."""
    threads: Annotated[int, within(1, 1024)] = 1
    """CPU threads of the network, and with several ranks also of the simulations of each rank. A single process
    simulates on all cores. Floating-point sums may depend on the number of threads."""
    costs: str = "efficiency"
    """How long ops take in the problems that `placeto train` makes: efficiency, roofline, or a file of costs."""
    device: str = "cpu"
    """Where the network computes: cpu, or cuda, with one GPU for each rank."""
    validate_every: Count = 10
    """Iterations between validations; the first ones come after a tenth, a fifth and half of so many. Placers use the
    parameters that were best in validation."""
    save_every: Count = 5
    """Iterations between checkpoints."""


@dataclass(frozen=True)
class TrainConfig(RunConfig):
    """Everything that defines the training of an iterative policy."""

    policy: Any = field(default_factory=PlacetoConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    search: GuidedConfig = field(default_factory=GuidedConfig)
    """How the trained policy guides a search; training doesn't use it."""


@dataclass(frozen=True)
class TraversalTrainConfig(RunConfig):
    """Everything that defines the training of the Placeto paper's policy."""

    placer: str = "placeto-paper"
    """The learned placer to train."""
    policy: PlacetoPaperConfig = field(default_factory=PlacetoPaperConfig)
    learning: TraversalLearningConfig = field(default_factory=TraversalLearningConfig)


@dataclass(frozen=True)
class OneShotTrainConfig(RunConfig):
    """Everything that defines the training of a one-shot policy."""

    placer: str = "seq2seq"
    """The learned placer to train."""
    policy: Any = field(default_factory=Seq2SeqConfig)
    learning: OneShotLearningConfig = field(default_factory=OneShotLearningConfig)


AnyTrainConfig = TrainConfig | TraversalTrainConfig | OneShotTrainConfig


ONE_SHOT_LEARNING = {
    "seq2seq": OneShotLearningConfig(entropy=0.005),
    "grouper": OneShotLearningConfig(),
    "gdp": OneShotLearningConfig(entropy=0.05),
    "constructive": OneShotLearningConfig(
        algorithm="reinforce",
        lr=2e-3,
        graphs=8,
        samples=8,
        reward="log",
        by_graph=True,
        entropy=0.01,
        average=0.9,
        imitation=0.5,
    ),
    "mlp": OneShotLearningConfig(entropy=0.05),
}
"""Name of a one-shot placer -> how it learns by default."""
FINE_TUNING: dict[str, dict[str, Any]] = {
    "placeto": {"reinforcement": 1.0, "parts": 0.0, "joined": 0.0},
    "gdp": {"epochs": 4, "lr": 5e-4, "soften": 3.0},
    "constructive": {"imitation": 0.0},
}
"""Name of a learned placer -> the settings of its learning that differ in fine-tuning."""


def default_config(placer: str, out: str) -> AnyTrainConfig:
    """Return the settings that a learned placer is trained with unless others are given.

    Raises:
        TrainingError: the learned placer is unknown, or the default learning of another package's placer is of the
            wrong kind.
        PlacerError: the package that has the placer can't be used.
    """
    _check_placer(placer)
    entry = find_policy(placer)
    policy = entry.config()
    if isinstance(entry, ExternalPolicy):
        kind = OneShotLearningConfig if entry.kind == "one-shot" else LearningConfig
        fits = isinstance(entry.learning, kind | None)
        if not fits:
            raise TrainingError(f"placer {placer!r}: learning must be a {kind.__name__}, not {entry.learning!r:.60}")
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


def check_config(config: AnyTrainConfig, measured: bool = False) -> None:
    """Refuse settings that can't work.

    Args:
        config: settings of a training.
        measured: moves are rewarded by measured step times, which the supervised stage can't use.

    Raises:
        TrainingError: one is out of its range or contradicts another, or the learned placer is unknown.
        PlacerError: the package that has the placer can't be used.
    """
    check_settings(config)
    _check_placer(config.placer)
    kind, expected = type(default_config(config.placer, config.out)), find_policy(config.placer).config
    if not isinstance(config, kind):
        raise TrainingError(f"placer {config.placer!r} needs a {kind.__name__}, not a {type(config).__name__}")
    if not isinstance(config.policy, expected):
        raise TrainingError(f"placer {config.placer!r} needs a {expected.__name__} as policy, not {config.policy!r}")
    if not config.out.strip():
        raise TrainingError("out is empty: give the directory of the run")
    if isinstance(config, TraversalTrainConfig) and config.device != "cpu":
        raise TrainingError(f"device must be cpu for {config.placer}, whose network is too narrow for a GPU")
    check_device(config.device)
    if isinstance(config, TraversalTrainConfig):
        _check_reward(config.learning.reward, reward_names())
    elif isinstance(config, OneShotTrainConfig):
        _check_one_shot(config)
        if measured and config.learning.imitation > 0:
            raise TrainingError("learning.imitation must be 0 with measured step times, because the placements that it "
                                f"repeats are found by simulation, not {config.learning.imitation}")  # fmt: skip
    elif isinstance(config, TrainConfig):
        _check_iterative(config)
        if measured and config.learning.supervised > 0:
            raise TrainingError(f"learning.reinforcement must be 1 with measured step times, because the supervised "
                              f"stage is simulated, not {config.learning.reinforcement}")  # fmt: skip


def check_loaded(**parts: Any) -> None:
    """Refuse settings of a checkpoint that can't work.

    Args:
        parts: by name, the dataclasses to check, such as `policy`, `env` and `search`.

    Raises:
        TrainingError: a setting is out of its range or contradicts another.
    """
    for part, settings in parts.items():
        check_settings(settings, f"{part}.")
        if isinstance(settings, OneShotConfig):
            _check_widths(settings)


def _check_iterative(config: TrainConfig) -> None:
    learning = config.learning
    if learning.reinforcement > 0 and learning.replicas < 2:
        raise TrainingError(f"learning.replicas must be at least 2, not {learning.replicas}")
    if learning.reinforcement < 1 and not hasattr(find_policy(config.placer).policy, "changes"):
        raise TrainingError(f"learning.reinforcement must be 1 for {config.placer}, which predicts no effects of "
                          f"moves, not {learning.reinforcement}")  # fmt: skip
    _check_reward(learning.reward, reward_names())
    episodes = learning.graphs * learning.supervised_replicas
    if learning.supervised > 0 and learning.replay and learning.replay < episodes:
        raise TrainingError(f"learning.replay must be 0 or at least the {episodes} episodes of an iteration, "
                          f"not {learning.replay}")  # fmt: skip


def _check_one_shot(config: OneShotTrainConfig) -> None:
    learning, policy = config.learning, config.policy
    _check_reward(learning.reward, placement_reward_names())
    if learning.baseline in ("samples", "quantile") and learning.samples < 2:
        raise TrainingError(f"learning.samples must be at least 2 here, not {learning.samples}")
    if isinstance(policy, OneShotConfig):
        _check_widths(policy)


def _check_reward(name: str, known: list[str]) -> None:
    if name not in known:
        raise TrainingError(f"learning.reward must be {' or '.join(known)}, not {name!r:.60}")


def _check_widths(policy: OneShotConfig) -> None:
    if policy.hidden % 2:
        raise TrainingError(f"policy.hidden must be even, not {policy.hidden}")
    if isinstance(policy, GdpConfig) and policy.hidden % policy.heads:
        raise TrainingError(f"policy.hidden must be a multiple of policy.heads {policy.heads}, not {policy.hidden}")


def _check_placer(placer: str) -> None:
    if placer not in policy_names():
        raise TrainingError(f"placer {placer!r} can't be trained; learned placers: {', '.join(policy_names())}")
