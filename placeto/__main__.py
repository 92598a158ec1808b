"""``python -m placeto`` is the ``placeto`` command."""

from placeto.cli import main

if __name__ == "__main__":
    main()
