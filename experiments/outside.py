"""How do our plans, optima and simulated steps compare with those of others? One table each.

python -m experiments.outside

Each experiment writes what it prints to ``experiments/results/NAME.md``, with the settings of its own command.
"""

from __future__ import annotations

import subprocess
import sys

EXPERIMENTS = (
    "outside_optima",
    "outside_pipedream",
    "outside_bubbles",
    "outside_sailor",
    "outside_amp",
    "outside_ratios",
    "outside_vtrain",
    "outside_recipe",
    "outside_torchgpipe",
)
"""In the order in which they run."""


def main() -> None:
    """Run them all; ends with the status of the first that fails."""
    for name in EXPERIMENTS:
        print(f"\n{name}\n", flush=True)
        if status := subprocess.run([sys.executable, "-m", f"experiments.{name}"], check=False).returncode:
            sys.exit(status)


if __name__ == "__main__":
    main()
