"""What a module holds beside its parameters, and whether it has changed since it was traced."""

__all__: list[str] = []
