import itertools

import numpy as np
import pytest
import torch

from placeto.environment.columns import NODE
from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.mdp import reset, step
from placeto.problem.grouping import expand
from placeto.simulator.schedule import simulate
from tests.cases import toy_problem


@pytest.fixture(scope="module")
def batch():
    problems = [toy_problem(s, 12 + s, 2 + s) for s in range(2)]
    return InstanceBatch.of([make_instance(p) for p in problems])


def random_episode(batch, config, moves, seed=0):
    random = np.random.default_rng(seed)
    index = np.array([0, 1])
    states = [reset(batch, config, index, np.zeros((2, batch.max_groups), np.int64))]
    for _ in range(moves):
        state = states[-1]
        action = []
        for b in range(2):
            nodes = torch.nonzero(state.data.batch == b).flatten()
            legal = torch.nonzero(state.data.legal[nodes].flatten()).flatten().numpy()
            action.append(random.choice(legal))
        states.append(step(batch, config, state, np.array(action)))
    return states


def test_one_sweep_moves_every_group_once_and_never_stays(batch):
    groups = int(batch.num_groups[0])
    states = random_episode(batch, EnvConfig(tolerance=None), groups)
    for before, after in itertools.pairwise(states):
        assert ((before.placement != after.placement).sum(1) == 1).all()
    moved = np.array([before.placement[0] != after.placement[0] for before, after in itertools.pairwise(states)])
    assert (moved.sum(0)[:groups] == 1).all()
    assert not states[-1].visited[0].any()  # the next sweep begins
    assert states[-2].visited[0].sum() == groups - 1


def test_makespan_and_best_follow_the_simulator(batch):
    states = random_episode(batch, EnvConfig(tolerance=None), 8)
    for b in (0, 1):
        instance = batch.instances[b]
        groups, single = instance.groups, instance.problem.single_device_us
        spans = [
            simulate(instance.problem, expand(groups, s.placement[b, : groups.num_groups])).makespan_us for s in states
        ]
        np.testing.assert_allclose([s.makespan[b] for s in states], np.array(spans) / single, rtol=1e-12)
        assert states[-1].best[b] == pytest.approx(min(spans) / single)
        best = simulate(instance.problem, expand(groups, states[-1].best_placement[b, : groups.num_groups])).makespan_us
        assert best == min(spans)


def test_a_move_for_the_worse_is_taken_back(batch):
    """Placement, observation and legal moves are those of before; only the visit, the step and the simulation count."""
    groups = int(batch.num_groups[0])
    states = random_episode(batch, EnvConfig(tolerance=0.0), groups - 1)
    taken_back = 0
    for before, after in itertools.pairwise(states):
        assert (after.makespan <= after.best).all()
        for b in (0, 1):
            nodes = after.data.batch == b
            moved = (after.placement[b] != before.placement[b]).any()
            assert moved == (after.met[b] <= before.best[b])
            assert after.visited[b].sum() == before.visited[b].sum() + 1
            again = reset(batch, EnvConfig(), after.index, after.placement).data
            columns = [i for name, i in NODE._asdict().items() if name not in ("visited", "steps_left")]
            assert torch.equal(after.data.x[nodes][:, columns], again.x[nodes][:, columns])
            assert torch.equal(after.data.pair[nodes], again.pair[nodes])
            assert torch.equal(after.data.current[nodes], again.current[nodes])
            arcs = after.data.batch[after.data.edge_index[0]] == b
            assert torch.equal(after.data.edge_attr[arcs], again.edge_attr[arcs])
            taken_back += not moved
    assert taken_back > 3


def test_topological_order_visits_nodes_in_order_and_may_stay(batch):
    groups = int(batch.num_groups[0])
    states = random_episode(batch, EnvConfig(order="topological"), groups)
    for t, state in enumerate(states[:-1]):
        here = state.data.traversal == torch.from_numpy(state.steps % batch.num_groups[:2])[state.data.batch]
        assert torch.equal(state.data.legal.any(1), here)
        assert torch.equal(state.data.x[:, NODE.is_current].bool(), here)
        node = int(torch.nonzero(here & (state.data.batch == 0)))
        assert state.data.legal[node, : batch.num_devices[0]].all()
        assert int(state.data.traversal[node]) == t


def test_illegal_actions_are_refused(batch):
    state = reset(batch, EnvConfig(), np.array([0]), np.zeros((1, batch.max_groups), np.int64))
    with pytest.raises(ValueError, match="episode 0: moving group 0 to device 0 is not legal"):
        step(batch, EnvConfig(), state, np.array([0]))


def test_step_does_not_touch_the_state_it_is_given(batch):
    state = reset(batch, EnvConfig(), np.array([0, 1]), np.zeros((2, batch.max_groups), np.int64))
    kept = state.placement.copy(), state.visited.copy(), state.data.x.clone()
    step(batch, EnvConfig(), state, np.array([1, 1]))
    assert (state.placement == kept[0]).all()
    assert (state.visited == kept[1]).all()
    assert torch.equal(state.data.x, kept[2])


def test_an_episode_may_begin_in_the_middle_of_a_sweep(batch):
    """The same marks, steps and legal moves as after a step that was taken back."""
    for config in (EnvConfig(tolerance=-1.0), EnvConfig(order="topological", tolerance=-1.0)):
        first, second = random_episode(batch, config, 1)
        again = reset(batch, config, second.index, second.placement, second.visited)
        assert (again.placement == first.placement).all()
        assert (again.steps == 1).all()
        assert torch.equal(again.data.x, second.data.x)
        assert torch.equal(again.data.legal, second.data.legal)
