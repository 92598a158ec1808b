import numpy as np
import pytest
import torch

from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.mdp import reset
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.problem.grouping import expand
from placeto.simulator.schedule import simulate
from placeto.training.rollout import greedy_pass, random_pass, rollout
from tests.cases import toy_problem


@pytest.fixture(scope="module")
def setting():
    torch.manual_seed(0)
    problems = [toy_problem(s, 15 + 5 * s, 2 + s) for s in range(2)]
    return PlacetoPolicy(PlacetoConfig()), InstanceBatch.of([make_instance(p) for p in problems])


def roll(setting, seed, **options):
    policy, batch = setting
    state = reset(batch, EnvConfig(), np.array([0, 1]), np.zeros((2, batch.max_groups), np.int64))
    return rollout(policy, batch, EnvConfig(), state, 6, torch.Generator().manual_seed(seed), **options)


def test_same_seed_same_episodes(setting):
    first, second, other = roll(setting, 1), roll(setting, 1), roll(setting, 2)
    assert torch.equal(first.action, second.action)
    assert torch.equal(first.makespan, second.makespan)
    assert not torch.equal(first.action, other.action)


def test_shapes_and_counts(setting):
    episodes = roll(setting, 0, labels=5)
    assert episodes.action.shape == episodes.log_prob.shape == (6, 2)
    assert episodes.makespan.shape == (7, 2)
    assert episodes.simulations == 2 + 6 * 2 + 6 * 2 * 5
    assert (episodes.log_prob <= 0).all()
    assert episodes.end.best.min() == pytest.approx(episodes.makespan.min().item(), rel=1e-6)


def test_labels_are_the_exact_relative_changes(setting):
    _, batch = setting
    episodes = roll(setting, 3, labels=4)
    placement = np.zeros((2, batch.max_groups), np.int64)
    for t in range(6):
        labels, data = episodes.labels[t], episodes.data[t]
        assert len({(int(s), int(d)) for s, d in zip(labels.slot, labels.device, strict=True)}) == 8
        assert data.legal[labels.slot, labels.device].all()
        for k in range(8):
            b, group = k // 4, int(data.local[labels.slot[k]])
            instance = batch.instances[b]
            size = instance.groups.num_groups
            before = simulate(instance.problem, expand(instance.groups, placement[b, :size])).makespan_us
            moved = placement[b, :size].copy()
            moved[group] = int(labels.device[k])
            after = simulate(instance.problem, expand(instance.groups, moved)).makespan_us
            assert labels.change[k].item() == pytest.approx((after - before) / before, rel=1e-5)
        devices = data.legal.shape[1]
        for b in range(2):
            action = int(episodes.action[t, b])
            placement[b, action // devices] = action % devices


def test_a_state_with_few_moves_has_all_of_them_as_labels_and_takes_none_from_others(setting):
    data = roll(setting, 3, labels=1).data[0]
    moves = np.bincount(data.batch.numpy(), data.legal.sum(1).numpy()).astype(int)
    assert moves[0] < moves[1]
    episodes = roll(setting, 3, labels=int(moves[1]) - 1)
    labels = episodes.labels[0]
    there = labels.there()
    found = list(zip(there.slot.tolist(), there.device.tolist(), strict=True))
    assert len(set(found)) == len(found)
    assert all(data.legal[slot, device] for slot, device in found)
    of = np.bincount(data.batch.numpy()[there.slot.numpy()])
    assert of.tolist() == [moves[0], moves[1] - 1]
    assert episodes.simulations == 2 + 6 * 2 + sum(int((labels.device >= 0).sum()) for labels in episodes.labels)


def test_greedy_pass_takes_the_most_likely_moves_and_has_no_randomness(setting):
    policy, batch = setting
    placement = np.zeros((2, batch.max_groups), np.int64)
    first = greedy_pass(policy, batch, EnvConfig(), np.array([0, 1]), placement)
    second = greedy_pass(policy, batch, EnvConfig(), np.array([0, 1]), placement)
    np.testing.assert_array_equal(first.placement, second.placement)
    assert (first.steps == batch.max_groups).all()
    assert (first.best <= 1.0 + 1e-9).all()


@pytest.mark.parametrize("taken", ["likeliest", "random"])
def test_a_pass_ends_for_each_graph_with_its_own_sweep(setting, taken):
    """The makespan at the end of the shorter one is that of its placement, which a pass of its own gives as well."""
    policy, batch = setting
    env = EnvConfig(tolerance=None)

    def one_pass(index):
        placement = np.zeros((len(index), batch.max_groups), np.int64)
        if taken == "random":
            return random_pass(batch, env, np.array(index), placement, torch.Generator().manual_seed(0))
        return greedy_pass(policy, batch, env, np.array(index), placement)

    end = one_pass([0, 1])
    assert batch.num_groups[0] != batch.num_groups[1]
    for b, instance in enumerate(batch.instances):
        for placement, makespan in ((end.placement[b], end.makespan[b]), (end.best_placement[b], end.best[b])):
            ops = expand(instance.groups, placement[: instance.groups.num_groups])
            assert simulate(instance.problem, ops).makespan_us / batch.single_us[b] == pytest.approx(makespan)
        assert end.best[b] <= end.makespan[b]
    if taken == "likeliest":
        for b in range(2):
            assert one_pass([b]).makespan[0] == pytest.approx(end.makespan[b])


def test_a_random_pass_moves_groups_to_every_other_device_alike(setting):
    """From the first of three devices each group goes to the second or the third; the generator decides which."""
    _, batch = setting
    index, placement, env = (
        np.ones(200, np.int64),
        np.zeros((200, batch.max_groups), np.int64),
        EnvConfig(tolerance=None),
    )
    end = random_pass(batch, env, index, placement, torch.Generator().manual_seed(0))
    shares = np.bincount(end.placement[:, : batch.num_groups[1]].flatten(), minlength=3) / end.placement.size
    assert shares == pytest.approx([0.0, 0.5, 0.5], abs=0.03)
    again = random_pass(batch, env, index, placement, torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(end.placement, again.placement)
    other = random_pass(batch, env, index, placement, torch.Generator().manual_seed(1))
    assert not np.array_equal(end.placement, other.placement)
