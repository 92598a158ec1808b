import itertools
import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.errors import TrainingError
from placeto.placers import load_placer
from placeto.plumbing.signals import Interruption
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import LearningConfig, TrainConfig, TraversalLearningConfig, default_config
from placeto.training.learners.learner import TrainState
from placeto.training.rollout import greedy_pass
from placeto.training.trainer import train
from tests.cases import toy_problem
from tests.forked_ranks import FORKS
from tests.toys import fork_of_chains, random_graph, toy_cluster, two_cliques

QUICK = LearningConfig(
    reinforcement=0.5,
    graphs=2,
    supervised_replicas=2,
    supervised_moves=6,
    labels=4,
    replay=0,
    annealed=0.0,
    parts=0.0,
    joined=0.0,
    replicas=4,
    moves=6,
)


def problems(count, first=0):
    return {f"r{s}": toy_problem(s, 20, 2) for s in range(first, first + count)}


def config(out, **changes):
    base = TrainConfig(out=str(out), iterations=8, learning=QUICK, validate_every=3, save_every=1, threads=1)
    return replace(base, **changes)


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one | other)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    train(config(out), problems(3), problems(2, 10))
    return out


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(uninterrupted, tmp_path):
    """kill -9 half way, resume: bit-identical parameters, optimizer and random states."""
    child = FORKS.Process(target=train, args=(config(tmp_path), problems(3), problems(2, 10)))
    child.start()
    deadline = time.monotonic() + 120
    while not (tmp_path / "checkpoint.pt").exists() or load_checkpoint(tmp_path)["iteration"] < 3:
        assert child.exitcode is None or (tmp_path / "checkpoint.pt").exists()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.join()
    reached = load_checkpoint(tmp_path)["iteration"]
    train(config(tmp_path), problems(3), problems(2, 10), resume=True)
    one, other = load_checkpoint(uninterrupted), load_checkpoint(tmp_path)
    assert reached < 8
    assert one["iteration"] == other["iteration"] == 8
    assert same(one["parameters"], other["parameters"])
    assert same(one["best_parameters"], other["best_parameters"])
    assert torch.equal(one["random"]["generators"][0], other["random"]["generators"][0])
    assert one["random"]["generators"][1] == other["random"]["generators"][1]
    assert one["simulations"] == other["simulations"]


@pytest.mark.parametrize(("number", "iterations"), [(signal.SIGINT, 10_000), (signal.SIGTERM, 3)])
def test_a_signal_saves_first_and_then_interrupts(number, iterations, tmp_path):
    """It isn't forgotten in the last iteration either."""
    seen = []

    def report(done, note):
        seen.append((done, note))
        if note.startswith("iteration 3"):
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)  # as where the group and the one who started it are told of it

    with pytest.raises(Interruption) as stop:
        train(config(tmp_path, iterations=iterations, save_every=10_000), problems(3), None, report=report)
    how = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM"}[number]
    on = "; --resume goes on from there" if iterations > 3 else ""
    assert str(stop.value) == f"{how}: iteration 3 is saved in {tmp_path / 'checkpoint.pt'}{on}"
    assert stop.value.number == number
    assert load_checkpoint(tmp_path)["iteration"] == 3
    assert (tmp_path / "placement-0.json").exists()
    assert seen[-1][0] < 1.0
    assert not (tmp_path / ".lock").exists()


def test_checkpoint_needs_no_graphs_package_and_runs_no_code(uninterrupted, monkeypatch):
    monkeypatch.setitem(sys.modules, "graphs", None)
    assert torch.load(uninterrupted / "checkpoint.pt", weights_only=True)["format"] == "placeto.checkpoint/1"
    problem = toy_problem(99, 20, 2)
    result = load_placer(uninterrupted).one_pass(problem)
    assert result.makespan_us == simulate(problem, result.placement).makespan_us


def test_resuming_with_another_configuration_or_other_graphs_is_refused(uninterrupted):
    changed = config(uninterrupted, learning=replace(QUICK, clip=0.3))
    with pytest.raises(TrainingError, match=r"learning\.clip was 0\.2, now it is 0\.3"):
        train(changed, problems(3), problems(2, 10), resume=True)
    with pytest.raises(TrainingError, match="other graphs"):
        train(config(uninterrupted), problems(3), problems(2, 11), resume=True)
    with pytest.raises(TrainingError, match="other graphs"):
        train(config(uninterrupted), problems(3, 1), problems(2, 10), resume=True)


def test_no_validation_on_a_graph_of_the_training_of_the_first_checkpoint(tmp_path):
    short = config(tmp_path / "a", iterations=1)
    train(short, problems(2), problems(1, 10))
    first, tuned = load_checkpoint(tmp_path / "a"), replace(short, out=str(tmp_path / "b"))
    with pytest.raises(TrainingError, match="'r1' is in the validation set, and the checkpoint to begin with was tra"):
        train(tuned, problems(1, 5), problems(1, 1), initial=first)
    train(tuned, problems(1, 5), problems(1, 10), initial=first)
    train(replace(short, out=str(tmp_path / "c")), problems(1, 7), problems(1, 10))
    longer, other = replace(tuned, iterations=2), load_checkpoint(tmp_path / "c")
    train(longer, problems(1, 5), problems(1, 10), initial=other, resume=True)  # what is resumed counts, not `other`
    assert set(load_checkpoint(tmp_path / "b")["graphs"]["training"].values()) == {"r0", "r1", "r5"}


def test_training_and_validation_graphs_are_disjoint(tmp_path):
    with pytest.raises(TrainingError, match="'r2' is in the validation set and, as 'r2', in the training set"):
        train(config(tmp_path), problems(3), problems(2, 2))
    with pytest.raises(TrainingError, match=r"^there is no graph to train on$"):
        train(config(tmp_path), {}, problems(1))
    with pytest.raises(TrainingError, match=r"^there is no graph to validate on$"):
        train(config(tmp_path), problems(1), {})


def test_a_validation_graph_that_is_a_training_graph_with_other_names_is_refused(tmp_path):
    graph = random_graph(1, 20)
    renamed = replace(graph, name="other", op_names=tuple(f"x{name}" for name in graph.op_names))
    held_out = {"other": PlacementProblem(renamed, toy_cluster(2))}
    with pytest.raises(TrainingError, match=r"'other' .* as 'r1', in the training set, but for the names of its ops;"):
        train(config(tmp_path), problems(3), held_out)


def test_a_checkpoint_says_on_what_it_was_trained_also_before_fine_tuning(tmp_path):
    learning = replace(default_config("mlp", "").learning, samples=2)
    first = replace(default_config("mlp", str(tmp_path / "a")), iterations=1, learning=learning)
    three = {"three": toy_problem(7, 20, 3)}
    train(first, three, problems(1, 5))
    saved = load_checkpoint(tmp_path / "a")
    assert saved["devices"] == 3
    train(replace(first, out=str(tmp_path / "b")), problems(2), None, initial=saved)
    tuned = load_checkpoint(tmp_path / "b")
    assert tuned["devices"] == 3, "it has learned to place on three, and still may"
    assert sorted(tuned["graphs"]["training"].values()) == ["r0", "r1", "three"]
    assert list(tuned["graphs"]["validation"].values()) == ["r5"]
    del saved["devices"]  # of an earlier version
    train(replace(first, out=str(tmp_path / "c")), problems(2), None, initial=saved)
    assert load_checkpoint(tmp_path / "c")["devices"] == 0


@pytest.mark.slow
def test_learns_to_spread_independent_ops(tmp_path):
    """Trained on small forks it spreads an unseen, larger one optimally over more devices than it has seen."""
    sizes = ((4, 2), (6, 2), (3, 3), (6, 3), (9, 3))
    family = {f"fork{chains} on {devices}": fork_of_chains(chains, 1, devices) for chains, devices in sizes}
    learning = replace(
        QUICK, graphs=4, replicas=8, moves=8, supervised_moves=8, labels=8, reinforcement=0.7, lr=1e-3, temperature=1.0
    )
    numbers = train(
        TrainConfig(str(tmp_path), iterations=40, learning=learning, env=EnvConfig(tolerance=None), seed=1),
        family,
        {"fork8": fork_of_chains(8, 1, 4)},
    )
    assert numbers["hparam/simulations"] < 20_000
    torch.manual_seed(1)
    trained, untrained = PlacetoPolicy(PlacetoConfig()), PlacetoPolicy(PlacetoConfig())
    trained.load_state_dict(load_checkpoint(tmp_path)["parameters"])
    assert best_of_one_pass(trained, EnvConfig(tolerance=None), fork_of_chains(12, 1, 4)) == 30.0
    assert best_of_one_pass(untrained, EnvConfig(tolerance=None), fork_of_chains(12, 1, 4)) > 31.0


@pytest.mark.parametrize(("toy", "optimum"), [(fork_of_chains(8, 2), 80.0), (two_cliques(), 71.0)])
def test_trained_for_a_toy_it_keeps_the_optimum_that_it_starts_from(toy, optimum, tmp_path):
    """The best cheap placement, where episodes begin, is optimal here; a single graph validates itself."""
    learning = replace(QUICK, graphs=1)
    numbers = train(config(tmp_path, iterations=4, learning=learning), {"toy": toy}, None)
    assert numbers["hparam/simulations"] <= 4 * 4 * 7 + 2 * 4 * 6 * 4
    assert numbers["hparam/validation"] * toy.single_device_us == pytest.approx(optimum)
    assert numbers["makespan/best"] * toy.single_device_us == pytest.approx(optimum)


def best_of_one_pass(policy, env, problem):
    """Best makespan that a greedy sweep meets from all on the first device, where no heuristic helps."""
    batch = InstanceBatch.of([make_instance(problem)])
    end = greedy_pass(policy, batch, env, np.array([0]), np.zeros((1, batch.max_groups), np.int64))
    return round(float(end.best[0]) * problem.single_device_us, 6)


def test_a_run_that_ends_by_the_clock_is_validated_at_its_end(tmp_path):
    train(config(tmp_path, iterations=None, minutes=0.02, validate_every=10**6), problems(2), problems(1, 10))
    checkpoint = load_checkpoint(tmp_path)
    assert np.isfinite(checkpoint["best_validation"])
    assert same(checkpoint["best_parameters"], checkpoint["average"])


def test_minutes_count_from_the_first_iteration_on(tmp_path):
    """Graphs that take long to prepare leave training all of its minutes, and say which one it is."""
    notes = []

    def slowly(done, note):
        notes.append(note)
        time.sleep(0.5 if note.startswith("preparing") else 0.0)

    numbers = train(config(tmp_path, iterations=1), problems(3), problems(2, 10), report=slowly)
    assert notes[:4] == [*(f"preparing graph {n + 1} of 3: r{n}" for n in range(3)), "preparing graph 1 of 2: r10"]
    assert numbers["seconds/elapsed"] < 2.5 <= numbers["seconds/preparation"]


def test_a_run_ends_with_the_iteration_that_spends_its_simulations(tmp_path):
    """Warm-up is a share of them: 2 episodes of 1 + 6 placements and 6 x 4 labels each while it lasts, then 4."""
    learning = replace(QUICK, graphs=1)
    limited = config(tmp_path, iterations=None, simulations=240, learning=learning)
    assert train(limited, problems(1), None)["placements/simulated"] == 2 * 2 * (7 + 24) + 5 * 4 * 7
    assert load_checkpoint(tmp_path)["iteration"] == 7


def test_improvements_on_training_graphs_are_remembered(tmp_path):
    """From one device, where all begins: simulations and seconds grow, makespans fall, the last is the best met."""
    learning = replace(QUICK, graphs=1, starts="single")
    numbers = train(config(tmp_path, learning=learning, iterations=3), {"fork": fork_of_chains(8, 1)}, None)
    train(config(tmp_path, learning=learning), {"fork": fork_of_chains(8, 1)}, None, resume=True)
    points = load_checkpoint(tmp_path)["improvements"][0]
    assert points[0] == (0, 0.0, 1.0), "one device, though the cheap heuristics find the optimum"
    for before, after in itertools.pairwise(points):
        assert before[0] < after[0]
        assert before[1] < after[1]
        assert before[2] > after[2]
    assert points[-1][2] <= numbers["makespan/best"] < 1.0
    assert float(load_checkpoint(tmp_path)["elite_score"][0]) == points[-1][2]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"learning": {"labels": 0}}, r"learning\.labels must be >= 1, not 0"),
        ({"placer": "foo"}, "'foo' can't be trained; learned placers: placeto"),
        ({"learning": {"replicas": 1}}, r"learning\.replicas must be at least 2"),
        ({"learning": {"supervised_moves": 0}}, r"learning\.supervised_moves must be >= 1, not 0"),
        ({"learning": {"replay": 3}}, "replay must be 0 or at least the 4 episodes of an iteration, not 3"),
        ({"learning": {"replay": 8, "fits": 0}}, r"learning\.fits must be >= 1, not 0"),
        ({"learning": {"annealed": 1.5}}, r"learning\.annealed must be <= 1, not 1\.5"),
        ({"learning": {"lr": 1e30}}, r"learning\.lr must be <= 1, not"),
        ({"learning": {"lr": -1.0}}, r"learning\.lr must be >= 0, not"),
        ({"iterations": 0}, "iterations must be >= 1, not 0"),
        ({"seed": 10**26}, r"seed must be <= 9223372036854775807"),
        ({"out": ""}, "out is empty: give the directory of the run"),
        ({"device": "gpu"}, "device must be cpu or cuda, not 'gpu'"),
        ({"device": "cuda:64"}, r"device cuda:64: torch finds \d+ GPUs here; cpu is always there"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(changes, says, tmp_path):
    learning = replace(QUICK, **changes.get("learning", {}))
    with pytest.raises(TrainingError, match=says):
        train(replace(config(tmp_path), **changes | {"learning": learning}), problems(2), problems(1, 10))


def test_another_seed_is_another_run(uninterrupted, tmp_path):
    """The same seed is the same run: those that go on end as the one that was not interrupted."""
    train(config(tmp_path, seed=1), problems(3), problems(2, 10))
    one, other = load_checkpoint(uninterrupted), load_checkpoint(tmp_path)
    assert not same(one["parameters"], other["parameters"])
    assert np.isfinite(one["best_validation"])


def state_of(policy):
    optimizer, elite = torch.optim.SGD(policy.parameters(), 0.1), np.zeros((1, 1), np.int64)
    return TrainState(policy, optimizer, torch.Generator(), np.random.default_rng(), elite, np.zeros(1))


def test_the_average_of_the_last_parameters_is_what_is_judged():
    policy, seen = torch.nn.Linear(1, 1), []
    state = state_of(policy)
    for value in (1.0, 4.0, 7.0, 7.0):
        torch.nn.init.constant_(policy.weight, value)
        state.iteration += 1
        state.average_parameters(0.5)
        seen.append(float(state.average["weight"]))
    assert seen == pytest.approx([1.0, 3.0, 5.0, 6.0])
    with state.averaged():
        assert policy.weight.item() == pytest.approx(6.0)
    assert policy.weight.item() == 7.0
    state.average_parameters(0.0)
    assert float(state.average["weight"]) == 7.0


def test_settings_of_the_paper_out_of_range_are_refused(tmp_path):
    paper = default_config("placeto-paper", str(tmp_path))
    with pytest.raises(TrainingError, match="device must be cpu for placeto-paper, whose network is too narrow"):
        train(replace(paper, device="cuda:0"), problems(2), problems(1, 10))
    with pytest.raises(TrainingError, match=r"learning\.episodes must be >= 1, not 0"):
        train(replace(paper, learning=TraversalLearningConfig(episodes=0)), problems(2), problems(1, 10))
    with pytest.raises(TrainingError, match=r"learning\.reward must be improvement or .*, not 'nosuch'"):
        train(replace(paper, learning=TraversalLearningConfig(reward="nosuch")), problems(2), problems(1, 10))
