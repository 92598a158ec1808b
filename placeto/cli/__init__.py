"""The `placeto` command: one file a sub-command, each a dataclass of arguments and a `run`.

In come words from a shell; out go files, tables on stdout, messages on stderr, and status 2 with one line where the
user made a mistake.
"""

from placeto.cli.command import main

__all__ = ["main"]
