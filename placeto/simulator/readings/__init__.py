"""What is read from a schedule once it is there: the critical path, shares of devices, memory over time, intervals."""

__all__: list[str] = []
