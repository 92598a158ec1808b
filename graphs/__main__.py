"""``python -m graphs regenerate``: capture the graphs of the families again and write ``graphs/data``."""

from __future__ import annotations

import argparse

from graphs import SHIPPED
from graphs.regenerate import regenerate


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, and capture the graphs of the families that it names."""
    parser = argparse.ArgumentParser(prog="python -m graphs", description="The graph families that ship with Placeto.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("regenerate", help="capture the graphs again and write graphs/data")
    command.add_argument("--family", choices=list(SHIPPED), action="append", help="all by default")
    command.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args(arguments)
    for family in options.family or SHIPPED:
        regenerate(family, options.workers)


if __name__ == "__main__":
    main()
