"""The placement MDP (Markov decision process): what a policy observes, which moves it may make, and their rewards.

Input: problems with their ops in groups, each an `Instance`, and placements. Output: observations with named columns
(`observe`), and the states of batched episodes (`reset`, `step`). Addanki et al. 2019, section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeto.plumbing.lazily import lazily

if TYPE_CHECKING:
    from placeto.environment.env_config import EnvConfig
    from placeto.environment.instance import Instance, InstanceBatch, make_instance
    from placeto.environment.mdp import EnvState, reset, step
    from placeto.environment.observation import observe

__all__ = ["EnvConfig", "EnvState", "Instance", "InstanceBatch", "make_instance", "observe", "reset", "step"]

_NAMES = {
    "env_config": ("EnvConfig",),
    "instance": ("Instance", "InstanceBatch", "make_instance"),
    "mdp": ("EnvState", "reset", "step"),
    "observation": ("observe",),
}
__getattr__, __dir__ = lazily(globals(), _NAMES)
