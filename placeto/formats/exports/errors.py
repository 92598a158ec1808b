"""What exports refuse."""


class ExportError(ValueError):
    """A graph or placement that can't be exported to a format; the message says why."""
