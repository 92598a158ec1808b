"""Environments for gymnasium: their contract, and that they are the placement MDP."""

import importlib
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from placeto.environment.env_config import EnvConfig
from placeto.environment.gym import ID, PlacementEnv, PlacementVectorEnv, Sizes
from placeto.errors import PlacerError
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.cases import toy_problem
from tests.toys import fork_of_chains

IN_ORDER = EnvConfig(order="topological", tolerance=None)


def problems() -> list[PlacementProblem]:
    """Of different sizes, on different numbers of devices."""
    return [toy_problem(seed, 12 + 6 * seed, 2 + seed) for seed in range(3)]


def drawn(mask: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A legal action of each row."""
    return np.array([random.choice(np.flatnonzero(row)) for row in np.atleast_2d(mask)])


@pytest.mark.parametrize("env", [EnvConfig(), IN_ORDER], ids=["any order", "fixed order"])
def test_it_keeps_gymnasiums_contract(env: EnvConfig) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(PlacementEnv(problems(), env), skip_render_check=True)
        made = gymnasium.make(ID, problems=problems(), env=env)
        check_env(made.unwrapped, skip_render_check=True)
    assert made.observation_space.contains(made.reset(seed=0)[0])


def test_an_episode_that_is_over_takes_no_further_move() -> None:
    env = PlacementEnv(problems(), IN_ORDER)
    env.reset(options={"problem": 0})
    over = False
    while not over:
        _, _, over, _, _ = env.step(0)
    with pytest.raises(PlacerError, match=r"the episode is over: call reset\(\)"):
        env.step(0)
    env.reset()
    env.step(0)


@pytest.mark.parametrize("action", [-1, 10**9, 0.5, None, "left", [0]])
def test_what_is_no_action_is_refused(action: object) -> None:
    env = PlacementEnv(problems())
    env.reset()
    with pytest.raises(PlacerError, match=r"1 actions from 0 to .* are needed, not"):
        env.step(action)  # type: ignore[arg-type] # that it is refused


@pytest.mark.parametrize("given", [[], [None], problems()[0]], ids=["none", "no problem", "no sequence"])
def test_what_is_no_sequence_of_problems_is_refused(given: list[PlacementProblem]) -> None:
    with pytest.raises(PlacerError, match="needs a sequence of at least one problem"):
        PlacementEnv(given)


@pytest.mark.parametrize("env", [EnvConfig(), IN_ORDER], ids=["any order", "fixed order"])
def test_an_episode_is_a_sweep_of_legal_moves_whose_best_placement_is_simulated_alike(env: EnvConfig) -> None:
    placement = PlacementEnv(problems(), env)
    random = np.random.default_rng(0)
    for number, problem in enumerate(problems()):
        _, info = placement.reset(seed=1, options={"problem": number})
        assert info["problem"] == number
        assert info["makespan_us"] == pytest.approx(problem.single_device_us)
        total, moves, over = 0.0, 0, False
        while not over:
            assert np.array_equal(info["action_mask"], placement.action_masks())
            before = info["makespan_us"]
            _, reward, over, cut, info = placement.step(int(drawn(info["action_mask"], random)[0]))
            total, moves = total + reward, moves + 1
            assert not cut
            assert info["best_us"] <= before
        assert moves == placement.episodes.batch.num_groups[number]
        assert total == pytest.approx(1 - info["best_us"] / problem.single_device_us, abs=1e-5)
        assert simulate(problem, info["best_placement"]).makespan_us == pytest.approx(info["best_us"])


@pytest.mark.parametrize("env", [EnvConfig(), IN_ORDER], ids=["any order", "fixed order"])
def test_episodes_side_by_side_are_those_of_single_ones(env: EnvConfig) -> None:
    """Their problems differ, so that they end and begin anew at different times."""
    many = gymnasium.make_vec(ID, num_envs=3, problems=problems(), env=env)
    assert isinstance(many.unwrapped, PlacementVectorEnv)
    assert many.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    single = [PlacementEnv(problems(), env) for _ in range(3)]
    seen, infos = many.reset(seed=0, options={"problem": [2, 0, 1]})
    expected = [one.reset(options={"problem": number}) for one, number in zip(single, (2, 0, 1), strict=True)]
    random, ended = np.random.default_rng(0), 0
    for _ in range(40):
        assert many.observation_space.contains(seen)
        for row, (alone, info) in enumerate(expected):
            assert all(np.array_equal(seen[name][row], alone[name]) for name in alone)
            assert all(np.array_equal(infos[name][row], info[name]) for name in infos if name in info)
        actions = drawn(many.unwrapped.action_masks(), random)
        seen, rewards, over, cut, infos = many.step(actions)
        assert not cut.any()
        expected = []
        for row, one in enumerate(single):
            alone, reward, done, _, info = one.step(int(actions[row]))
            assert (reward, done) == (rewards[row], over[row])
            if done:
                ended += 1
                final = infos["final_obs"][row]
                assert all(np.array_equal(final[name], alone[name]) for name in alone)
                assert infos["final_info"]["best_us"][row] == info["best_us"]
                assert infos["final_info"]["best_placement"][row] == info["best_placement"]
                alone, info = one.reset(options={"problem": int(infos["problem"][row])})
            expected.append((alone, info))
    assert ended >= 3


def test_spaces_of_training_and_test_problems_are_alike() -> None:
    train, test = problems()[:2], problems()[2:]
    sizes = Sizes.of([*train, *test])
    one, other = PlacementEnv(train, sizes=sizes), PlacementEnv(test, sizes=sizes)
    assert one.observation_space == other.observation_space != PlacementEnv(train).observation_space
    assert one.action_space == other.action_space
    assert one.observation_space.contains(one.reset()[0])
    with pytest.raises(PlacerError, match="sizes must be at least"):
        PlacementEnv(test, sizes=Sizes.of(train))


def test_what_doesnt_fit_is_refused() -> None:
    with pytest.raises(PlacerError, match="call reset"):
        PlacementEnv(problems()).step(0)
    with pytest.raises(PlacerError, match="each on a cluster of two devices or more"):
        PlacementEnv([fork_of_chains(1, 1, devices=1)])
    with pytest.raises(PlacerError, match=r"reward must be improvement or .*, not 'luck'"):
        PlacementEnv(problems(), reward="luck")
    placement = PlacementEnv(problems())
    for options in ({"start": 1}, *({"problem": wrong} for wrong in (3, 0.7, "x"))):
        with pytest.raises(PlacerError, match="option "):
            placement.reset(options=options)
    for start in ([2], [1], None, [[0, 1], [0]], [], [0.9] * 12):
        with pytest.raises(PlacerError, match="option placement must "):
            placement.reset(options={"problem": 0, "placement": start})
    with pytest.raises(PlacerError, match="option placement must be a row of devices for each of 2, not"):
        PlacementVectorEnv(problems(), 2).reset(options={"placement": [0, 0, 0]})


def test_an_episode_begins_where_it_is_told_to() -> None:
    (problem,) = problems()[:1]
    placement = PlacementEnv([problem])
    random = np.random.default_rng(0)
    start = random.integers(2, size=placement.episodes.sizes.groups)
    _, info = placement.reset(options={"placement": start})
    ops = placement.best_placement()
    assert simulate(problem, ops).makespan_us == pytest.approx(info["makespan_us"]) == pytest.approx(info["best_us"])


def test_the_page_runs_and_names_what_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "gymnasium.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    space: dict[str, object] = {}
    exec(compile(code, "docs/gymnasium.md", "exec"), space)
    assert capsys.readouterr().out
    assert set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE)) == set(PlacementEnv(problems()).observation_space)


def test_without_gymnasium_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "placeto.environment.gym")
    with pytest.raises(ImportError, match=re.escape('pip install "placeto[gym]"')):
        importlib.import_module("placeto.environment.gym")


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (EnvConfig(order="random"), "env.order must be 'policy' or 'topological', not 'random'"),  # type: ignore[arg-type]
        (EnvConfig(tolerance=-1.0), "env.tolerance must be >= 0, not -1.0"),
        (EnvConfig(tolerance=float("nan")), "env.tolerance must be a finite number, not nan"),
        (EnvConfig(tolerance="0.1"), "env.tolerance must be a number, not '0.1'"),  # type: ignore[arg-type]
        ("topological", "env must be an EnvConfig, not 'topological'"),
    ],
)
def test_wrong_settings_of_an_episode_are_refused(env: Any, says: str) -> None:
    with pytest.raises(PlacerError, match=f"^{says}$"):
        PlacementEnv([fork_of_chains(3, 2)], env=env)
