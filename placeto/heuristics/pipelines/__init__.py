"""Plans for steps in micro-batches: stages on devices, what they recompute, and the order of their chunks."""
