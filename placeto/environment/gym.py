"""The placement MDP as `gymnasium` environments, for libraries of reinforcement learning; ``pip install placeto[gym]``.

`PlacementEnv` has one episode at a time. `PlacementVectorEnv` has many, simulated in one call. See docs/gymnasium.md.

Legend: B episodes, A actions, G groups of the largest problem, N ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.environment.env_config import EnvConfig
from placeto.environment.episodes import LARGEST, NOTHING, Episodes, Sizes
from placeto.errors import PlacerError
from placeto.problem.problem import PlacementProblem

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError:
    raise ImportError('environments for gymnasium need it: pip install "placeto[gym]"') from None

__all__ = ["ID", "PlacementEnv", "PlacementVectorEnv", "Sizes"]

ID = "placeto/Placement-v0"
"""Name of the environments for `gymnasium.make` and `gymnasium.make_vec`. Importing this module registers it."""
Observation = dict[str, np.ndarray]
_DEFAULT = EnvConfig()


class PlacementEnv(gymnasium.Env[Any, Any]):
    """One episode at a time. It begins with all ops on the best single device, and moves groups between devices.

    Args:
        problems: the problems to place. Each episode is about one of them, drawn at random.
        env: who chooses the next group, and which moves are taken back.
        reward: name of a reward of moves, from `placeto list rewards`.
        sizes: of observations and actions; None = those that the problems need. If a policy is trained on some problems
            and tested on others, give both environments ``Sizes.of(all problems)``.

    Raises:
        PlacerError: there is no problem, a problem has only one device or is larger than `sizes`, or there is no
            reward of this name.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium says so

    def __init__(
        self,
        problems: Sequence[PlacementProblem],
        env: EnvConfig = _DEFAULT,
        reward: str = "best-so-far",
        sizes: Sizes | None = None,
    ) -> None:
        self.episodes = Episodes(problems, env, reward, 1, sizes)
        self.observation_space = observation_space(self.episodes)
        self.action_space = spaces.Discrete(self.episodes.actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; returns its observation and info.

        `options` may have "problem", the number of the episode's problem, and "placement", (G,) devices of its groups.

        Raises:
            PlacerError: an option is unknown or wrong.
        """
        super().reset(seed=seed)
        index = np.array([self.np_random.integers(len(self.episodes.batch.instances))])
        _begin(self.episodes, np.ones(1, bool), index, options or {})
        return self._seen(), self._info(False)

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move a group; returns observation, reward, whether the episode is over, False (never truncated), and info.

        A move that isn't legal changes nothing.

        Raises:
            PlacerError: there is no such action, no episode has begun, or it is over.
        """
        reward, over = self.episodes.move(np.array([action]))
        return self._seen(), float(reward[0]), bool(over[0]), False, self._info(bool(over[0]))

    def action_masks(self) -> np.ndarray:
        """(A,) bool, which actions are legal. sb3-contrib's MaskablePPO calls this, for instance."""
        return self.episodes.mask()[0]

    def best_placement(self) -> np.ndarray:
        """(N,) int64, device of each op in the best placement so far of this episode."""
        return self.episodes.best_placement(0)

    def _seen(self) -> Observation:
        return {name: value[0] for name, value in self.episodes.observation().items()}

    def _info(self, over: bool) -> dict[str, Any]:
        info = {name: value[0] for name, value in self.episodes.info().items()}
        if over:  # a tuple, since the lengths differ between environments side by side
            info["best_placement"] = tuple(self.best_placement().tolist())
        return info


class PlacementVectorEnv(VectorEnv[Any, Any, Any]):
    """B episodes side by side, simulated in one call. When an episode is over, another one begins in the same step.

    Then ``infos["final_obs"]`` has the last observation of the one that is over, and ``infos["final_info"]`` its last
    info with its best placement.

    Args:
        problems: as for `PlacementEnv`.
        num_envs: B.
        env: as for `PlacementEnv`.
        reward: as for `PlacementEnv`.
        sizes: as for `PlacementEnv`.

    Raises:
        PlacerError: as for `PlacementEnv`.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - gymnasium says so

    def __init__(
        self,
        problems: Sequence[PlacementProblem],
        num_envs: int = 1,
        env: EnvConfig = _DEFAULT,
        reward: str = "best-so-far",
        sizes: Sizes | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.episodes = Episodes(problems, env, reward, num_envs, sizes)
        self.single_observation_space = observation_space(self.episodes)
        self.single_action_space = spaces.Discrete(self.episodes.actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin all episodes; returns their observations and infos.

        `options` are those of `PlacementEnv`, with a row for each episode.

        Raises:
            PlacerError: an option is unknown or wrong.
        """
        super().reset(seed=seed)
        _begin(self.episodes, np.ones(self.num_envs, bool), self._drawn(), options or {})
        return self.episodes.observation(), self.episodes.info()

    def step(self, actions: np.ndarray) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Make a move in each episode.

        Returns:
            Observations; rewards (B,); whether each episode is over (B,) bool; whether it is truncated (B,), always
            False; and infos.

        Raises:
            PlacerError: an action is out of range, or no episodes have begun.
        """
        reward, over = self.episodes.move(actions)
        last: dict[str, Any] = {}
        if over.any():
            observation, info = self.episodes.observation(), self.episodes.info()
            for row in np.flatnonzero(over).tolist():
                final = {name: value[row] for name, value in info.items()}
                final["best_placement"] = tuple(self.episodes.best_placement(row).tolist())  # problems differ in size
                ended = {"final_obs": {name: value[row] for name, value in observation.items()}, "final_info": final}
                last = self._add_info(last, ended, row)
            self.episodes.begin(over, self._drawn())
        infos = self.episodes.info() | last
        return self.episodes.observation(), reward, over, np.zeros(self.num_envs, bool), infos

    def action_masks(self) -> np.ndarray:
        """(B, A) bool, which actions are legal."""
        return self.episodes.mask()

    def _drawn(self) -> np.ndarray:
        """(B,) number of a problem for each episode, drawn at random."""
        return self.np_random.integers(len(self.episodes.batch.instances), size=self.num_envs)


def observation_space(episodes: Episodes) -> spaces.Dict:
    """The space of one episode's observations; see `Episodes.observation`."""
    groups, devices, arcs = episodes.sizes

    def features(*shape: int) -> spaces.Box:
        return spaces.Box(-LARGEST, LARGEST, shape, np.float32)

    return spaces.Dict(
        {
            "node": features(groups, len(NODE)),
            "pair": features(groups, devices, len(PAIR)),
            "edge": features(arcs, len(EDGE)),
            "arcs": spaces.Box(NOTHING, groups - 1, (arcs, 2), np.int64),
            "present": spaces.MultiBinary(groups),
        }
    )


def _begin(episodes: Episodes, rows: np.ndarray, index: np.ndarray, options: dict[str, Any]) -> None:
    """Begin episodes about the problems `index` (B,), where `rows` (B,) bool is set.

    The options of a reset may replace the problems, and give placements.

    Raises:
        PlacerError: an option is unknown or wrong.
    """
    if unknown := set(options) - {"problem", "placement"}:
        raise PlacerError(f"unknown option {min(unknown)!r:.60} of a reset; there are problem and placement")
    problems, placement = len(episodes.batch.instances), None
    if "problem" in options:
        index = np.atleast_1d(np.array(options["problem"]))
        if index.shape != rows.shape or index.dtype.kind not in "iu" or index.min() < 0 or index.max() >= problems:
            raise PlacerError(
                f"option problem must be {len(rows)} of 0 to {problems - 1}, not {options['problem']!r:.60}"
            )
    if "placement" in options:
        placement, batch = np.zeros((len(rows), episodes.sizes.groups), np.int64), episodes.batch
        for row, (number, asked) in enumerate(zip(index, _rows(options["placement"], len(rows)), strict=True)):
            groups, devices = int(batch.num_groups[number]), int(batch.num_devices[number])
            whole = asked.shape in ((groups,), (episodes.sizes.groups,)) and asked.dtype.kind in "iu"
            if not whole or asked.min() < 0 or asked.max() >= devices:
                raise PlacerError(
                    f"option placement must have a device from 0 to {devices - 1} for each of the {groups} groups of "
                    f"problem {number}, not {options['placement']!r:.60}"
                )
            placement[row, : len(asked)] = asked
    episodes.begin(rows, index, placement)


def _rows(values: Any, count: int) -> list[np.ndarray]:
    """A placement for each of `count` episodes; a single one may be given without a list around it."""
    try:
        rows = [np.array(values)] if count == 1 and np.ndim(values) == 1 else [np.array(row) for row in values]
    except (TypeError, ValueError):  # a number, None, or rows of other rows
        rows = []
    if len(rows) != count:
        raise PlacerError(f"option placement must be a row of devices for each of {count}, not {values!r:.60}")
    return rows


gymnasium.register(
    ID,
    entry_point="placeto.environment.gym:PlacementEnv",
    vector_entry_point="placeto.environment.gym:PlacementVectorEnv",
)
