"""Episodes side by side: what moves are worth, moves that aren't legal, and padding."""

import numpy as np
import pytest
import torch

from placeto.environment.env_config import EnvConfig
from placeto.environment.episodes import Episodes, Sizes
from placeto.environment.rewards import find_reward
from tests.cases import toy_problem
from tests.toys import fork_of_chains

ALL = np.ones(3, bool)


def three(reward: str = "best-so-far", sizes: Sizes | None = None) -> Episodes:
    """Of different sizes, on different numbers of devices; they have begun."""
    problems = [toy_problem(seed, 12 + 6 * seed, 2 + seed) for seed in range(3)]
    episodes = Episodes(problems, EnvConfig(), reward, 3, sizes)
    episodes.begin(ALL, np.arange(3))
    return episodes


def drawn(episodes: Episodes, random: np.random.Generator) -> np.ndarray:
    """A legal action in each."""
    return np.array([random.choice(np.flatnonzero(row)) for row in episodes.mask()])


@pytest.mark.parametrize("reward", ["improvement", "best-so-far", "at-the-end"])
def test_rewards_are_those_of_whole_episodes(reward: str) -> None:
    episodes, random = three(reward), np.random.default_rng(2)
    makespans, rewards = [episodes.going.makespan], []
    shortest = episodes.horizon.min()
    for move in range(shortest):
        worth, over = episodes.move(drawn(episodes, random))
        assert (over == (episodes.horizon == move + 1)).all()
        makespans.append(episodes.going.makespan)
        rewards.append(worth)
    expected = find_reward(reward)(torch.from_numpy(np.stack(makespans).astype(np.float32))).numpy()
    row = int(episodes.horizon.argmin())
    np.testing.assert_allclose(np.stack(rewards)[:, row], expected[:, row], atol=1e-6)
    assert np.stack(rewards)[:, row].any()


def test_where_a_move_is_illegal_nothing_changes_and_the_others_move() -> None:
    episodes, alone, random = three(), three(), np.random.default_rng(0)
    for _ in range(3):
        actions = drawn(episodes, random)
        episodes.move(actions)
        alone.move(actions)
    before, seen, actions = episodes.going, episodes.observation(), drawn(episodes, random)
    alone.move(actions)
    actions[1] = np.flatnonzero(~episodes.mask()[1])[0]
    worth, over = episodes.move(actions)
    after = episodes.going
    assert worth[1] == 0.0
    assert not over.any()
    for name in ("placement", "visited", "makespan", "best", "best_placement"):
        assert np.array_equal(getattr(after, name)[1], getattr(before, name)[1]), name
        for row in (0, 2):
            assert np.array_equal(getattr(after, name)[row], getattr(alone.going, name)[row]), name
    assert all(np.array_equal(episodes.observation()[name][1], seen[name][1]) for name in seen)


def test_what_isnt_there_is_padding() -> None:
    episodes = Episodes([fork_of_chains(2, 3)], EnvConfig(), "best-so-far", 1, Sizes(9, 4, 11))
    episodes.begin(np.ones(1, bool), np.zeros(1, np.int64))
    seen, instance = episodes.observation(), episodes.batch.instances[0]
    groups, arcs = instance.groups.num_groups, instance.pairs.shape[1]
    assert groups < 9
    assert seen["present"][0].tolist() == [1] * groups + [0] * (9 - groups)
    assert not seen["node"][0, groups:].any()
    assert not seen["pair"][0, groups:].any()
    assert not seen["pair"][0, :, 2:].any()
    assert seen["pair"][0, :groups, :2].any((1, 2)).all()
    assert np.array_equal(seen["arcs"][0, :arcs].T, instance.pairs)
    assert (seen["arcs"][0, arcs:] == -1).all()
    assert not episodes.mask().reshape(9, 4)[groups:].any()
    assert not episodes.mask().reshape(9, 4)[:, 2:].any()
