"""How an experiment is started from the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tyro

from placeto.cli import user_errors

Config = TypeVar("Config")


def command(main: Callable[[Config], object], config: type[Config], name: str, description: str | None) -> None:
    """Run an experiment with its config from the command line; what Placeto refuses ends it with 2 and one line."""
    with user_errors():
        main(tyro.cli(config, prog=f"python -m experiments.{name}", description=description))
