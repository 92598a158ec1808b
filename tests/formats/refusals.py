"""Graph files that an importer refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from placeto.problem.graph import ComputationGraph, GraphError


def assert_refused(load: Callable[[Path], ComputationGraph], path: Path, message: str) -> None:
    """In one short line, which names the file once."""
    with pytest.raises(GraphError, match=message) as caught:
        load(path)
    assert str(caught.value).count(str(path)) == 1
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
