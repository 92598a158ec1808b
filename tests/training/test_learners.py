import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from placeto.environment.env_config import EnvConfig
from placeto.environment.mdp import reset
from placeto.errors import TrainingError
from placeto.policies import POLICIES
from placeto.policies.one_shot.gdp import GdpConfig
from placeto.policies.one_shot.inputs import make_input
from placeto.policies.one_shot.seq2seq import Seq2SeqConfig
from placeto.policies.placeto import PlacetoConfig
from placeto.problem.grouping import group_ops
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import LearningConfig, OneShotLearningConfig, TrainConfig, check_config, default_config
from placeto.training.learners.iterative import Family, IterativeLearner, learning_rate
from placeto.training.learners.learner import Run, set_learning_rate
from placeto.training.learners.one_shot import OneShotLearner, advantages, scoring
from placeto.training.learners.replay import Replay, labelled_states
from placeto.training.losses import normalise
from placeto.training.recipes import PAPERS
from placeto.training.rollout import rollout
from placeto.training.trainer import pretrained_config, train
from placeto.training.updates import policy_update
from tests.cases import toy_problem
from tests.training.test_trainer import config, problems, same


def test_iterations_keep_the_best_placement_met_and_validation_changes_nothing(tmp_path):
    learner = IterativeLearner(Run(config(tmp_path), problems(3), problems(2, 10)))
    state = learner.initial_state()
    before = state.elite_score.copy()
    numbers = learner.iterate(state, 0.0)
    assert (state.elite_score <= before).all()
    assert numbers["makespan/episode_end"] >= numbers["makespan/episode_best"] >= state.elite_score.min()
    check_elite_and_validation(learner, state)


def check_elite_and_validation(learner, state):
    """What was kept takes as long as is said, and validation answers the same twice, and changes nothing."""
    for index, problem in enumerate(learner.problems.values()):
        makespan = simulate(problem, state.elite[index, : problem.num_ops]).makespan_us
        np.testing.assert_allclose(makespan / problem.single_device_us, state.elite_score[index])
    parameters = {name: value.clone() for name, value in state.policy.state_dict().items()}
    random = state.torch_random.get_state()
    one, other = learner.validate(state), learner.validate(state)
    assert np.array_equal(one.end, other.end)
    assert np.array_equal(one.best_met, other.best_met)
    assert torch.equal(random, state.torch_random.get_state())
    assert same(parameters, state.policy.state_dict())
    first = next(iter(learner.validation.values()))
    np.testing.assert_allclose(simulate(first, one.placement).makespan_us / first.single_device_us, one.best_met[0])


def one_shot(tmp_path, **learning):
    base = default_config("seq2seq", str(tmp_path))
    small = replace(base.learning, **({"graphs": 2, "samples": 4, "baseline": "moving"} | learning))
    return replace(base, policy=Seq2SeqConfig(hidden=16), learning=small, iterations=8, validate_every=3, save_every=1)


def test_one_shot_rounds_keep_the_best_placement_met_and_validation_changes_nothing(tmp_path):
    learner = OneShotLearner(Run(one_shot(tmp_path), problems(3), problems(2, 10)))
    state = learner.initial_state()
    for _ in range(6):
        learner.iterate(state, 0.0)
    assert state.simulations == 6 * 2 * 4
    check_elite_and_validation(learner, state)


def advantages_of(relative, config, problems, history, fits=None, counts=None):
    """All fit and count unless told otherwise."""
    every = np.ones_like(relative, bool)
    return advantages(
        relative, every if fits is None else fits, every if counts is None else counts, config, problems, history
    )


def test_advantages_in_closed_form():
    relative = np.array([[1.0, 4.0], [9.0, 1.0]])  # rewards -1, -2 and -3, -1
    history = {}
    moving = OneShotLearningConfig(baseline="moving", decay=0.75)
    first = advantages_of(relative, moving, [5, 7], history)
    torch.testing.assert_close(first.advantage, torch.tensor([[0.5, -0.5], [-1.0, 1.0]]))  # no history: their own mean
    torch.testing.assert_close(torch.stack([history[5], history[7]]), torch.tensor([-1.5, -2.0]))
    second = advantages_of(np.array([[16.0, 16.0]]), moving, [5], history)
    torch.testing.assert_close(second.advantage, torch.tensor([[-2.5, -2.5]]))
    torch.testing.assert_close(history[5], torch.tensor(0.75 * -1.5 + 0.25 * -4.0))
    mean = advantages_of(relative, OneShotLearningConfig(baseline="samples"), [0, 1], {})
    torch.testing.assert_close(mean.advantage, torch.tensor([[0.5, -0.5], [-1.0, 1.0]]))
    best = OneShotLearningConfig(baseline="quantile", quantile=0.5)
    relative = np.array([[1.0, 4.0, 16.0]])
    torch.testing.assert_close(advantages_of(relative, best, [0], {}).advantage, torch.tensor([[1.0, 0.0, 0.0]]))
    log = OneShotLearningConfig(reward="log")
    expected = torch.tensor([[1.0, 0.0, -1.0]]) * math.log(4.0)
    torch.testing.assert_close(advantages_of(relative, log, [0], {}).advantage, expected)


def test_the_baseline_of_all_trials_is_their_plain_mean():
    config, history = OneShotLearningConfig(baseline="trials"), {}
    rounds = [np.array([[1.0, 9.0]]), np.array([[16.0, 16.0]]), np.array([[0.0, 4.0]])]
    found = [advantages_of(relative, config, [3], history).advantage for relative in rounds]
    torch.testing.assert_close(torch.cat(found), torch.tensor([[1.0, -1.0], [-2.0, -2.0], [3.0, 1.0]]))
    torch.testing.assert_close(history[3], torch.tensor([-7 / 3, 3.0]))


def test_placements_that_fail_get_the_failing_signal_then_teach_nothing():
    relative, fits = np.array([[1.0, 4.0, 100.0]]), np.array([[True, True, False]])
    config, history = OneShotLearningConfig(baseline="moving", decay=0.5, failed=-10.0), {}
    first = advantages_of(relative, config, [0], history, fits)
    torch.testing.assert_close(first.advantage, torch.tensor([[9.0, 8.0, 0.0]]))  # the baseline begins at the signal
    torch.testing.assert_close(history[0], torch.tensor(0.5 * -10 + 0.5 * -13 / 3))
    late = advantages_of(relative, config, [0], {0: torch.tensor(-3.0)}, fits, fits)
    torch.testing.assert_close(late.advantage, torch.tensor([[2.0, 1.0, 0.0]]))
    none = np.zeros_like(fits)
    assert not advantages_of(relative, config, [0], history, none, none).advantage.any()
    torch.testing.assert_close(history[0], torch.tensor(0.5 * -10 + 0.5 * -13 / 3))
    for baseline in ("samples", "quantile"):
        other = advantages_of(relative, replace(config, baseline=baseline), [0], {}, fits, fits).advantage
        assert other[0, 0] > 0.0 == other[0, 2]
        assert not advantages_of(relative, replace(config, baseline=baseline), [0], {}, none, none).advantage.any()


@pytest.mark.parametrize("placer", ["seq2seq", "grouper", "gdp", "constructive", "mlp"])
@pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
def test_one_shot_updates_raise_the_probability_of_what_turned_out_well(placer, algorithm):
    entry = POLICIES[placer]
    policy = entry.policy(entry.config(hidden=16))
    graph = make_input(next(iter(problems(1).values())), policy.units)
    sample = policy.sample(graph, 4, torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4 if placer == "grouper" else 1e-3)
    config = OneShotLearningConfig(algorithm=algorithm, clip=10.0, epochs=1)
    advantage, random = normalise(torch.tensor([[1.0, 0.0, 0.0, -0.1]])), np.random.default_rng(0)
    for _ in range(20 if placer == "grouper" else 5):
        score = scoring(policy, [graph], [sample], advantage)
        policy_update(policy, optimizer, 1, score, config, random, entropy=0.0)
    gain = (policy.score(graph, sample.action)[0] - sample.log_prob).detach().sum(1)
    assert gain[0] > 0
    assert gain[0] > gain[3]
    if placer != "grouper":  # its samples have most of their groups in common
        assert gain.argmax() == 0
        assert gain.argmin() == 3 or placer == "mlp"  # whose samples have all of its parameters in common


def test_a_one_shot_run_resumes_bit_identically(tmp_path):
    config = one_shot(tmp_path / "whole", imitation=0.75, searched=20)
    one, stopped, other = whole_stopped_and_resumed(config, tmp_path / "half")
    assert stopped["iteration"] == 4
    assert {key: float(value) for key, value in one["history"].items()} == {
        key: float(value) for key, value in other["history"].items()
    }


def test_a_resumed_run_imitates_what_the_checkpoint_has_without_annealing_again(tmp_path):
    config = one_shot(tmp_path, imitation=0.75, searched=20)
    first, again = (
        OneShotLearner(Run(config, problems(2), problems(1, 10), resumed=of)).family for of in (False, True)
    )
    assert np.isfinite(first.found_score).all()
    assert np.isinf(again.found_score).all()


class Stop(Exception):
    """As if the machine had failed, or the process had been killed."""


def whole_stopped_and_resumed(config, half):
    """Checkpoints of a run, of one that ends after four iterations, and of that one gone on to the same end."""

    def report(done, note):
        if note.startswith("iteration 4,"):
            raise Stop

    train(config, problems(3), problems(2, 10))
    with pytest.raises(Stop):
        train(replace(config, out=str(half)), problems(3), problems(2, 10), report=report)
    stopped = load_checkpoint(half)
    train(replace(config, out=str(half)), problems(3), problems(2, 10), resume=True)
    one, other = load_checkpoint(config.out), load_checkpoint(half)
    assert one["iteration"] == other["iteration"] == config.iterations
    assert one["simulations"] == other["simulations"]
    assert torch.equal(one["elite_score"], other["elite_score"])
    for name in ("parameters", "best_parameters"):
        assert same(one[name], other[name])
    drawn, again = (state["random"]["generators"] for state in (one, other))
    assert torch.equal(drawn[0], again[0])
    assert drawn[1] == again[1]
    return one, stopped, other


@pytest.mark.parametrize("placer", ["placeto", "seq2seq"])
def test_fine_tuning_begins_with_the_best_parameters_of_a_checkpoint(placer, tmp_path):
    make = one_shot if placer == "seq2seq" else config
    train(make(tmp_path / "first"), problems(3), problems(2, 10))
    first = load_checkpoint(tmp_path / "first")
    going_on = replace(make(tmp_path / "second"), iterations=1, learning=replace(make("x").learning, lr=0.0))
    if placer == "placeto":
        going_on = replace(going_on, learning=replace(going_on.learning, reinforcement=1.0))
    train(going_on, problems(1, 20), None, initial=first)
    second = load_checkpoint(tmp_path / "second")
    assert same(first["best_parameters"], second["parameters"])
    assert second["iteration"] == 1
    other = {"placeto": PlacetoConfig(hidden=24), "seq2seq": Seq2SeqConfig(hidden=24)}[placer]
    with pytest.raises(TrainingError, match=r"hidden was \d+, now it is 24"):
        train(replace(going_on, policy=other), problems(1, 20), None, initial=first)
    wrong = default_config("gdp", str(tmp_path / "third"))
    with pytest.raises(TrainingError, match=f"a checkpoint of the placer {placer}, not gdp"):
        train(wrong, problems(1, 20), None, initial=first)
    assert type(pretrained_config("x", first, "y").policy) is type(other)


def test_fine_tuning_begins_with_softer_choices(tmp_path):
    tuned = replace(one_shot(tmp_path / "first"), placer="gdp", policy=GdpConfig(hidden=16), iterations=1)
    train(tuned, problems(3), problems(2, 10))
    first = load_checkpoint(tmp_path / "first")
    going_on = pretrained_config("x", first, str(tmp_path / "second"))
    assert going_on.learning.soften == 3.0
    going_on = replace(going_on, iterations=1, learning=replace(going_on.learning, graphs=1, lr=0.0))
    train(going_on, problems(1, 20), None, initial=first)
    second = load_checkpoint(tmp_path / "second")["parameters"]
    for name, before in first["best_parameters"].items():
        times = 3.0 if name.startswith(("head.query", "head.pair")) else 1.0
        torch.testing.assert_close(second[name] * times, before)


@pytest.mark.parametrize("placer", PAPERS)
def test_the_recipes_of_the_papers_train(placer, tmp_path):
    of, run = PAPERS[placer], replace(one_shot(tmp_path), iterations=3, placer=placer)
    learning = replace(of.learning, graphs=2, samples=4)
    numbers = train(replace(run, policy=replace(of.policy, hidden=16), learning=learning), problems(3), problems(2, 10))
    assert numbers["placements/simulated"] == 3 * 2 * 4
    assert np.isfinite(numbers["loss/policy"])
    assert set(load_checkpoint(tmp_path)["history"]) <= {0, 1, 2}


def test_learning_rate_falls_to_a_tenth_in_the_supervised_stage_and_then_to_zero():
    learning = LearningConfig(reinforcement=0.5, supervised_lr=1.0, lr=0.2)
    rates = [learning_rate(learning, done) for done in (0.0, 0.25, 0.5, 0.75, 1.0)]
    np.testing.assert_allclose(rates, [1.0, 0.55, 0.2, 0.1, 0.0])
    assert learning_rate(LearningConfig(supervised_lr=1.0), 0.5) == pytest.approx(0.55), "one stage unless asked"
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    assert set_learning_rate(optimizer, 0.3) == optimizer.param_groups[0]["lr"] == 0.3


def test_parts_and_annealed_placements_of_a_family():
    """Half of the problems have parts for groups, a quarter joined ones; annealing has bettered the cheap starts."""
    problems = {f"r{s}": toy_problem(s, 320, 3) for s in range(4)}
    learning = LearningConfig(parts=0.5, joined=0.25, annealed=0.5)
    family = Family.of(Run(TrainConfig("", learning=learning), problems, problems))
    coarse = [group_ops(problem).num_groups for problem in problems.values()]
    more = [np.sign(i.groups.num_groups - c) for i, c in zip(family.batch.instances, coarse, strict=True)]
    assert sorted(more) == [-1, 0, 1, 1]
    better = []
    for instance, starts, searched in zip(family.batch.instances, family.starts, family.annealed, strict=True):
        assert searched.shape[1:] == starts.placement.shape[1:]
        score = Evaluator(instance.problem, instance.groups).score_batch(searched) / instance.problem.single_device_us
        better.append(score.min() < starts.score[0])
        assert len(np.unique(searched, axis=0)) > 1
    assert sum(better) >= 3, "of four problems; the budgets of annealing are small"
    learning = LearningConfig(parts=0.0, joined=0.0, reinforcement=1.0)
    without = Family.of(Run(TrainConfig("", learning=learning), problems, problems))
    assert [i.groups.num_groups for i in without.batch.instances] == coarse
    assert all(len(searched) == 0 for searched in without.annealed)


def remembering(tmp_path):
    learning = LearningConfig(graphs=2, supervised_replicas=2, supervised_moves=3, labels=5, replay=20, annealed=0.0)
    run = {"iterations": 6, "validate_every": 3, "save_every": 1, "threads": 1}
    return TrainConfig(str(tmp_path), learning=learning, policy=PlacetoConfig(hidden=16), **run)


def test_states_are_remembered_as_they_were(tmp_path):
    """What is drawn from memory is what episodes observed, with the same labels; the oldest states are forgotten."""
    several = {f"r{s}": toy_problem(s, 10 + 9 * s, 2 + s) for s in range(3)}
    learner = IterativeLearner(Run(remembering(tmp_path), several, several))
    state, batch, env = learner.initial_state(), learner.family.batch, EnvConfig(tolerance=None)
    index, placement = learner._choose_starts(state, 2, same=False)
    begin = reset(batch, env, index, placement)
    episodes = rollout(state.policy, batch, env, begin, 3, state.torch_random, labels=5)
    replay = Replay(10, batch.num_groups, batch.num_devices, 8)
    replay.add(labelled_states(episodes, batch.max_groups, 8))
    assert len(replay) == 10 < replay.added == 12
    kept = [(t, b) for t in range(3) for b in range(4)][2:]  # of 3 moves of 4 episodes, in the order of moves
    rows = np.array([(4 * t + b) % 10 for t, b in kept])
    first = torch.zeros(1, dtype=torch.long)
    for row, (t, b) in zip(rows, kept, strict=True):
        seen, labels = episodes.data[t], episodes.labels[t]
        again = reset(batch, env, *replay.placed(np.array([row]))).data
        nodes = seen.batch == b
        assert torch.equal(again.x, seen.x[nodes])
        assert torch.equal(again.current, seen.current[nodes])
        known = replay.labels(np.array([row]), first)
        mine = slice(5 * b, 5 * b + 5)
        assert torch.equal(known.slot + seen.first[b], labels.slot[mine])
        assert torch.equal(known.device, labels.device[mine])
        assert torch.equal(known.change, labels.change[mine])


@pytest.mark.parametrize(
    "change",
    [
        {"index": torch.tensor([3], dtype=torch.int32)},
        {"placement": torch.full((1, 9), 2, dtype=torch.int16)},
        {"group": torch.full((1, 2), 9, dtype=torch.int32)},
        {"device": torch.full((1, 2), 2, dtype=torch.int16)},
        {"added": 2},
    ],
    ids=["index", "placement", "group", "device", "added"],
)
def test_remembered_states_are_those_of_the_problems(change):
    replay = Replay(4, [9, 5, 7], [2, 2, 2], 2)
    replay.states["device"][0] = 1
    replay.added = 1
    again, saved = Replay(4, [9, 5, 7], [2, 2, 2], 2), replay.saved()
    again.restore(saved)
    assert all(np.array_equal(values, again.states[name]) for name, values in replay.states.items())
    with pytest.raises(TrainingError, match="the remembered states"):
        again.restore(saved | change)


def test_a_run_that_remembers_states_resumes_bit_identically(tmp_path):
    one, _, other = whole_stopped_and_resumed(remembering(tmp_path / "whole"), tmp_path / "half")
    assert one["replay"].pop("added") == other["replay"].pop("added") == 6 * 4 * 3
    assert same(one["replay"], other["replay"])


def test_what_was_remembered_is_forgotten_with_its_stage(tmp_path):
    config = remembering(tmp_path / "whole")
    config = replace(config, learning=replace(config.learning, reinforcement=0.5, replicas=2, moves=3))
    one, stopped, other = whole_stopped_and_resumed(config, tmp_path / "half")
    assert one["replay"] is stopped["replay"] is other["replay"] is None


def test_settings_out_of_range_are_refused(tmp_path):
    base = one_shot(tmp_path)
    cases = [
        (replace(base, learning=replace(base.learning, decay=1.0)), r"learning\.decay must be <= 0\.999"),
        (replace(base, learning=replace(base.learning, samples=1, baseline="samples")), r"learning\.samples must be"),
        (replace(base, policy=Seq2SeqConfig(hidden=5)), r"policy\.hidden must be even"),
        (replace(base, placer="gdp"), "placer 'gdp' needs a GdpConfig as policy"),
        (replace(base, learning=replace(base.learning, soften=0.0)), r"learning\.soften must be >= 0\.001"),
        (replace(base, learning=replace(base.learning, minibatch=0)), r"learning\.minibatch must be >= 1"),
    ]
    for wrong, says in cases:
        with pytest.raises(TrainingError, match=says):
            check_config(wrong)


def test_the_supervised_stage_begins_where_annealing_has_been(tmp_path):
    problems = {f"r{s}": toy_problem(s, 40, 2) for s in range(3)}
    learning = LearningConfig(graphs=2, supervised_replicas=2, supervised_moves=2, labels=4, annealed=1.0)
    learner = IterativeLearner(Run(TrainConfig(str(tmp_path), learning=learning), problems, problems))
    state = learner.initial_state()
    index, placement, visited = learner._choose_annealed(state, 2)
    groups = learner.family.batch.num_groups[index]
    assert len(index) == 4
    assert len(set(index.tolist())) == 2
    assert not any(row[count:].any() for row, count in zip(visited, groups, strict=True))
    assert all(row[:count].sum() < count for row, count in zip(visited, groups, strict=True))
    known = [{row.tobytes() for row in learner.family.annealed[i]} for i in index]
    width = [learner.family.annealed[i].shape[1] for i in index]
    assert any(row[:w].tobytes() in of for row, w, of in zip(placement, width, known, strict=True))
    before = state.simulations
    numbers = learner.iterate(state, 0.0)
    assert numbers["loss/supervised"] > 0.0
    assert state.simulations - before == 4 * (1 + 2 * (1 + 4))
    fresh = [not row.any() for _ in range(100) for row in learner._choose_annealed(state, 2)[2]]
    assert 0.5 < np.mean(fresh) < 0.8  # the others have some groups marked as visited
