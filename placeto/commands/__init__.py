"""The subcommands of ``placeto``: one file each, a dataclass of arguments and a function that runs it."""
