"""Trains MaskablePPO of sb3-contrib on a toy family of graphs, and tests it on graphs that it has never seen.

    pip install "placeto[gym]" sb3-contrib
    python examples/maskable_ppo.py

An episode visits the groups of a graph in topological order, from all of them on one device; the policy names a device
for each. The return is by which share the last placement is faster than that one device. The control is a policy that
names devices at random.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from placeto import ComputationGraph, PlacementProblem, load_cluster
from placeto.environment.columns import NODE
from placeto.environment.env_config import EnvConfig
from placeto.environment.gym import PlacementEnv, Sizes

OPS = 20


class CurrentGroup(BaseFeaturesExtractor):
    """What is known of the group whose turn it is, and of its pairs with the devices: (B, node + D * pair features)."""

    def __init__(self, space: spaces.Dict) -> None:
        node, pair = space["node"].shape, space["pair"].shape
        assert node is not None
        assert pair is not None
        super().__init__(space, node[1] + pair[1] * pair[2])

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        """Rows of the groups that are marked."""
        here = seen["node"][..., NODE.is_current].argmax(1)
        rows = torch.arange(len(here), device=here.device)
        return torch.cat([seen["node"][rows, here], seen["pair"][rows, here].flatten(1)], -1)


def problem(seed: int) -> PlacementProblem:
    """A random graph in which each op reads one or two of the last ones, on four P100."""
    random = np.random.default_rng(seed)
    ops = []
    for i in range(OPS):
        parents = {max(0, i - int(random.integers(1, 6))) for _ in range(random.integers(1, 3))} if i else set()
        ops.append(
            {
                "name": f"op{i}",
                "inputs": [[f"op{parent}", 0] for parent in sorted(parents)],
                "outputs": [int(random.integers(1, 10)) * 1_000_000],
                "time_us": {"*": float(random.integers(100, 1000))},
            }
        )
    return PlacementProblem(ComputationGraph.from_ops(f"toy{seed}", ops), load_cluster("4xp100"))


def returns(env: PlacementEnv, problems: int, model: MaskablePPO | None) -> np.ndarray:
    """(C,) the return of an episode on each problem: of a model's most likely moves, or of random ones without it."""
    random, found = np.random.default_rng(0), np.zeros(problems)
    for number in range(problems):
        (seen, info), over = env.reset(options={"problem": number}), False
        while not over:
            mask = info["action_mask"]
            if model is None:
                action = random.choice(np.flatnonzero(mask))
            else:
                action, _ = model.predict(seen, action_masks=mask, deterministic=True)
            seen, reward, over, _, info = env.step(int(action))
            found[number] += reward
    return found


def main(steps: int) -> dict[str, float]:
    """Train, and print what comes of it."""
    torch.set_num_threads(1)
    train, test = [problem(seed) for seed in range(32)], [problem(seed) for seed in range(1000, 1016)]
    in_order = EnvConfig(order="topological", tolerance=None)
    sizes = Sizes.of([*train, *test])

    def env_of(problems: list[PlacementProblem]) -> PlacementEnv:
        return PlacementEnv(problems, env=in_order, reward="improvement", sizes=sizes)

    envs = make_vec_env(lambda: env_of(train), n_envs=8, seed=0)
    extractor = {"features_extractor_class": CurrentGroup}
    model = MaskablePPO("MultiInputPolicy", envs, 1e-3, 80, 128, policy_kwargs=extractor, gamma=1.0, seed=0)
    unseen = env_of(test)
    found = {"random": returns(unseen, len(test), None), "untrained": returns(unseen, len(test), model)}
    model.learn(steps)
    found["trained"] = returns(unseen, len(test), model)
    for name, each in found.items():
        print(f"{name:<10} return {each.mean():.3f}, of {len(test)} unseen graphs {each.min():.3f} to {each.max():.3f}")
    return {name: float(each.mean()) for name, each in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=24_000)
    main(parser.parse_args().steps)
