"""What a user gives to a capture: arguments, objects that hold tensors, a loss, and the checks of them."""

__all__: list[str] = []
