import pytest
import torch

from placeto.environment.env_config import EnvConfig
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.guided_search import GuidedPlacer
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy


@pytest.fixture(scope="module")
def placer():
    """A search guided by a policy that has learned nothing."""
    torch.manual_seed(0)
    return GuidedPlacer(CompiledPolicy.of(PlacetoPolicy(PlacetoConfig())), EnvConfig())
