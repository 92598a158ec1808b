"""The `placeto` command: one file a sub-command, each a dataclass of arguments and a `run`.

Input: the words of a command line. Output: files, tables on stdout, and messages on stderr. If the user made a mistake,
the exit status is 2, and one line on stderr says what to do.
"""

import sys

try:
    from placeto.cli.command import main
except KeyboardInterrupt:  # while numpy is imported
    print("interrupted", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
