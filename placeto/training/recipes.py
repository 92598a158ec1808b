"""How one-shot policies were trained in the papers that they come from, as far as the papers say.

A recipe is the settings of a network and of its learning. Settings that a recipe leaves at their defaults are not
published, or they belong to our networks (see `placeto.policies.one_shot`). These describe ops and devices by other
features than the papers do, and all of them by the same features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from placeto.errors import TrainingError
from placeto.policies.one_shot.gdp import GdpConfig
from placeto.policies.one_shot.grouper import GrouperConfig
from placeto.policies.one_shot.mlp import MlpConfig
from placeto.policies.one_shot.seq2seq import Seq2SeqConfig
from placeto.training.config import (
    AnyTrainConfig,
    OneShotConfig,
    OneShotLearningConfig,
    OneShotTrainConfig,
    TrainConfig,
    default_config,
)

RecipeName = Literal["ours", "paper"]


@dataclass(frozen=True)
class Recipe:
    """The settings of a network and of its learning."""

    policy: OneShotConfig
    learning: OneShotLearningConfig


COLOCRL = Recipe(
    Seq2SeqConfig(units="paper", feedback=False, normalised=False),
    OneShotLearningConfig(
        algorithm="reinforce",
        baseline="moving",
        normalise=False,
        entropy=0.0,
        samples=8,
        failed=-10.0,
        failures=5000,
        falling=False,
    ),
)
"""ColocRL: Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning", ICML 2017, arXiv 1706.04972.

Section 3.1: the algorithm is REINFORCE. The reward is minus the square root of the run time. The baseline is a moving
average. A placement that fails counts as a large constant, the failing signal, which is also the first value of the
baseline. After 5,000 steps, placements that fail are left out. Section 3.3: units are made by the rule of co-location.
Section 3.4: a controller draws a placement for each of its 4 to 8 workers.

Not published: optimiser (here Adam), learning rate (here 0.001), widths (here 64), decay of the baseline (here 0.8) and
clipping of the gradient (here 1). The failing signal is not published either: it is chosen for each graph. Here it is
that of the code of HDP, a run time of 100, but relative to the best single device and not in seconds. The first value
of the baseline matters: see `experiments/decisions/2026-11-26-one-shot-placers.md`.

Also different here: there is one controller, not 20 that write to shared parameters at the same time.
"""

HDP = Recipe(
    GrouperConfig(groups=80, prior=0.0, feedback=False, bound=5.0, temperature=10.0),
    OneShotLearningConfig(
        algorithm="reinforce",
        lr=0.1,
        baseline="moving",
        decay=0.9,
        normalise=False,
        entropy=0.0,
        samples=4,
        failed=-10.0,
        failures=1000,
        falling=False,
    ),
)
"""HDP: Mirhoseini et al., "A Hierarchical Model for Device Placement", ICLR 2018.

The paper's configuration: Adam with a fixed learning rate of 0.1, gradients clipped to a norm of 1, logits bounded by a
hyperbolic tangent with C = 5 and T = 10, and in each step one grouping with four placements of its groups. The reward
is minus the square root of the run time. The baseline is a moving average. Placements that fail get a large negative
reward.

The authors' code (tensorflow/python/grappler/hierarchical_controller.py) says more. The reward of a placement that
fails is that of a run time of 100, which is also the first value of the baseline. The decay of the baseline is 0.9.
After 1,000 steps, placements that fail are left out. There are 20 groups for each device, and at most 256: here 80, for
4 devices.

What differs here: each of the four placements has a grouping of its own. The width is 64 for the grouper, as in the
code, and also for the LSTMs, which are 512 wide there. There is no noise on the logits of the first steps. The run time
of 100 is relative to the best single device, not in seconds. Liu et al. 2019 (doi 10.1145/3318265.3318270) train the
same two networks; what they changed in the training we could not find.
"""

GDP = Recipe(
    GdpConfig(units="ops"),
    OneShotLearningConfig(baseline="trials", normalise=False, failed=-10.0, falling=False),
)
"""GDP: Zhou et al., "GDP: Generalized Device Placement for Dataflow Graphs", 2019, arXiv 1910.01578.

The algorithm is PPO. The reward is minus the square root of the normalised run time, and -10 for a placement that
fails. The baseline is the average reward of all earlier trials of the graph. The device of each op is chosen
separately.

Not found: learning rate (here 0.001), placements of a step (here 16), PPO's clipping range (here 0.2), its passes (here
2), weight of the entropy bonus (here 0.02), clipping of the gradient (here 1) and widths (here 64).
"""

PAPERS: dict[str, Recipe] = {
    "seq2seq": COLOCRL,
    "grouper": HDP,
    "gdp": GDP,
    "mlp": Recipe(MlpConfig(units="paper"), COLOCRL.learning),  # the control of ColocRL: no paper has this network
}
"""Name of a learned placer -> the recipe of its paper."""


def recipe_config(placer: str, recipe: RecipeName, out: str) -> AnyTrainConfig:
    """Return the settings that a learned placer is trained with: our defaults ("ours") or its paper's ("paper").

    Raises:
        TrainingError: the learned placer is unknown, or no recipe of a paper is known for it.
        PlacerError: the package that has the placer can't be used.
    """
    config = default_config(placer, out)
    if recipe == "ours" or placer == "placeto-paper":
        return config
    if isinstance(config, TrainConfig) or placer not in PAPERS:
        raise TrainingError(f"recipe paper: placer {placer!r} has none; {', '.join((*PAPERS, 'placeto-paper'))} have")
    assert isinstance(config, OneShotTrainConfig)
    return replace(config, policy=PAPERS[placer].policy, learning=PAPERS[placer].learning)
