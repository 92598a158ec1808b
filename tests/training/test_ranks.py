import math
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from placeto.errors import TrainingError
from placeto.policies import POLICIES
from placeto.problem.cluster import save_cluster
from placeto.problem.graph import save_graph
from placeto.training.checkpoint import load_checkpoint
from placeto.training.ranks import Ranks
from placeto.training.trainer import _check_ranks
from tests import distributed_worker
from tests.distributed_worker import PLACERS
from tests.forked_ranks import run_ranks
from tests.toys import random_graph, toy_cluster


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Where two ranks have done the runs of `distributed_worker`."""
    out = tmp_path_factory.mktemp("ranks")
    run_ranks("tests.distributed_worker", str(out), ranks=2, folder=out)
    return out


@pytest.fixture(scope="module")
def ranks(out):
    return [torch.load(out / f"rank-{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("run", [*PLACERS, "stopped", "resumed"])
def test_ranks_end_with_the_same(ranks, run):
    one, other = ranks[0][run], ranks[1][run]
    for name, value in one["parameters"].items():
        assert torch.equal(value, other["parameters"][name]), name
    for name in ("elite", "elite_score", "torch_random"):
        assert torch.equal(one[name], other[name]), name
    assert one["numbers"] == other["numbers"]


@pytest.mark.slow
@pytest.mark.parametrize("placer", PLACERS)
def test_two_ranks_learn_what_one_learns(ranks, placer, tmp_path, monkeypatch):
    """Uneven shares of the same episodes: the same but for rounding, which Adam makes larger where gradients are 0."""
    states = remembered_states(monkeypatch)
    settings = distributed_worker.config(placer, tmp_path)
    alone = distributed_worker.trained(settings)
    assert len(states) == 1
    torch.manual_seed(0)
    begin = POLICIES[settings.placer].policy(settings.policy).state_dict()
    both = ranks[0][placer]
    moved = max(float((value - begin[name]).abs().max()) for name, value in alone["parameters"].items())
    for name, value in alone["parameters"].items():
        torch.testing.assert_close(both["parameters"][name], value, rtol=0, atol=0.05 * moved)
        difference = (both["parameters"][name] - value).abs().mean()
        assert difference < 0.005 * moved, name
    for name in ("elite", "elite_score", "torch_random"):
        assert torch.equal(both[name], alone[name]), name
    assert both["simulations"] == alone["simulations"]
    assert both["numbers"] == pytest.approx(alone["numbers"], rel=1e-3, abs=1e-5)
    assert alone["numbers"]["train/gradient_norm"] > 0.01


def remembered_states(monkeypatch):
    """The states of the trainings of this process, while the test runs."""
    for learner in distributed_worker.LEARNERS:
        monkeypatch.setattr(learner, "initial_state", learner.initial_state)  # put back after the test
    distributed_worker.STATES.clear()
    distributed_worker.remember_states()
    return distributed_worker.STATES


@pytest.mark.slow
def test_one_rank_validates_reports_and_writes(out, ranks):
    for placer in PLACERS:
        assert load_checkpoint(out / placer)["iteration"] == distributed_worker.ITERATIONS
        events = [path.name.split(".")[5] for path in (out / placer).rglob("events.*")]
        assert len(set(events)) == 1, "event files of several processes"
        assert {path.name.split(".")[0] for path in (out / placer).iterdir()} == {
            "by-placements",
            "checkpoint",
            "events",
            "untrained",
        }
        assert ranks[0][placer]["said"] > 0
        assert ranks[1][placer]["said"] == 0


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_and_resuming_ends_the_same(ranks):
    assert ranks[0]["stopped"]["iteration"] == ranks[1]["stopped"]["iteration"] == 2
    whole, resumed = ranks[0]["placeto"], ranks[0]["resumed"]
    assert resumed["iteration"] == whole["iteration"]
    for name, value in whole["parameters"].items():
        assert torch.equal(value, resumed["parameters"][name]), name
    assert torch.equal(whole["torch_random"], resumed["torch_random"])


@pytest.mark.slow
def test_one_process_goes_on_where_two_stopped(out, tmp_path, monkeypatch):
    shutil.copytree(out / "placeto", tmp_path / "run")
    remembered_states(monkeypatch)
    longer = distributed_worker.ITERATIONS + 1
    config = replace(distributed_worker.config("placeto", tmp_path / "run"), iterations=longer)
    assert distributed_worker.trained(config, resume=True)["iteration"] == longer


@pytest.mark.slow
def test_a_rank_that_dies_leaves_no_rank_waiting(out):
    message = (out / "error-0.txt").read_text()
    assert message.startswith("rank 0 of 2 lost the others (")
    assert not (out / "error-1.txt").exists()


@pytest.mark.slow
def test_train_command_in_several_ranks_speaks_once(tmp_path):
    for seed in range(2):
        save_graph(random_graph(seed, 12), tmp_path / f"g{seed}.json")
    save_cluster(toy_cluster(2), tmp_path / "cluster.json")
    graphs = [str(tmp_path / f"g{seed}.json") for seed in range(2)]
    learning = ["--learning.graphs", "2", "--learning.replicas", "2", "--learning.moves", "2"]
    learning += ["--learning.annealed", "0"]  # which the runs of `distributed_worker` have
    where = ["--cluster", str(tmp_path / "cluster.json"), "--out", str(tmp_path / "run")]
    command = "placeto", "train", *graphs, *where, *learning, "--policy.hidden", "8", "--iterations", "2"
    told = run_ranks(*command, ranks=2, folder=tmp_path)
    words = Counter(line.split()[0] for line in told.splitlines())
    once = {word: words[word] for word in ("validation", "best", "checkpoint", "curves")}
    assert once == {"validation": 1, "best": 2, "checkpoint": 1, "curves": 1}
    assert told.count("no validation graphs") == 1
    assert told.count("training: 100 %") == 1
    assert load_checkpoint(tmp_path / "run")["iteration"] == 2
    assert sorted(path.name for path in (tmp_path / "run").glob("p*")) == ["placement-0.json", "placement-1.json"]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_shares_are_even_and_together_all(size, count):
    ranks = [Ranks(rank, size) for rank in range(size)]
    shares = [np.arange(count)[rank.share(count)] for rank in ranks]
    assert np.concatenate(shares).tolist() == list(range(count))
    assert max(map(len, shares)) <= math.ceil(count / size)
    blocks = [(b, row) for rank in ranks for b, rows in rank.share_of_blocks(3, count) for row in range(count)[rows]]
    assert blocks == [(b, row) for b in range(3) for row in range(count)]


def test_what_cant_be_joined_is_said_in_a_sentence(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TrainingError, match=r"can't join the 2 ranks \(.+\); start them with torchrun"):
        Ranks.from_environment()
    if torch.cuda.device_count() < 64:
        monkeypatch.setenv("LOCAL_RANK", "63")
        with pytest.raises(TrainingError, match=r"2 ranks with --device cuda, \d+ GPUs here: .* one rank for each GPU"):
            Ranks.from_environment("cuda")


def test_more_ranks_than_episodes_are_refused(tmp_path):
    config, problems = distributed_worker.config("placeto", tmp_path), distributed_worker.problems(0, 1)
    _check_ranks(config, problems, Ranks(0, 6))
    with pytest.raises(TrainingError, match=r"7 ranks can't share 6 episodes .* raise learning\.replicas"):
        _check_ranks(config, problems, Ranks(0, 7))
    with pytest.raises(TrainingError, match=r"6 ranks can't share 5 episodes .* raise learning\.episodes"):
        _check_ranks(distributed_worker.config("placeto-paper", tmp_path), problems, Ranks(0, 6))
    with pytest.raises(TrainingError, match=r"raise learning\.samples"):
        _check_ranks(distributed_worker.config("gdp", tmp_path), problems, Ranks(0, 11))
