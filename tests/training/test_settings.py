from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from placeto.ranges import Range, Share
from placeto.training.settings import ConfigError, check_settings


@dataclass(frozen=True)
class Inner:
    rate: Share = 0.5
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    name: str = "x"
    count: Annotated[int, Range(1, 9)] = 3
    limit: float | None = None
    flag: bool = True
    inner: Inner = field(default_factory=Inner)


def test_good_settings_pass() -> None:
    check_settings(Outer())
    check_settings(Outer(limit=3, inner=Inner(rate=1)))  # whole numbers are numbers
    check_settings(Inner(rate=1.0), "inner.")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Outer(count=0), "count must be at least 1, not 0"),
        (Outer(count=10), "count must be at most 9, not 10"),
        (Outer(limit=float("nan")), "limit must be finite, not nan"),
        (Outer(limit=float("inf")), "limit must be finite, not inf"),
        (Outer(limit=10**26), "limit must be below 2\\^63, not 1000"),
        (Outer(count=True), "count must be int, not True"),
        (Outer(count=2.0), "count must be int, not 2.0"),  # type: ignore[arg-type]
        (Outer(flag=1), "flag must be bool, not 1"),  # type: ignore[arg-type]
        (Outer(name=None), "name must be str, not None"),  # type: ignore[arg-type]
        (Outer(limit="3"), "limit must be float or none, not '3'"),  # type: ignore[arg-type]
        (Outer(inner=Inner(rate=2.0)), r"inner\.rate must be at most 1, not 2"),
        (Outer(inner=Inner(kind="c")), r"inner\.kind must be 'a' or 'b', not 'c'"),  # type: ignore[arg-type]
        (Outer(inner=Inner(kind=[])), r"inner\.kind must be 'a' or 'b', not \[\]"),  # type: ignore[arg-type]
        (Outer(name=["x" * 999]), r"name must be str, not .{60}$"),  # type: ignore[arg-type]
    ],
)
def test_bad_ones_are_named(wrong: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^{says}"):
        check_settings(wrong)
