"""``python -m placeto`` is the ``placeto`` command."""

from placeto.cli.command import main

if __name__ == "__main__":
    main()
