"""What traced nodes cost: FLOPs of products, bytes that ops read and write, and keys of measured times."""

__all__: list[str] = []
