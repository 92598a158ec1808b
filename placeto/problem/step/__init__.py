"""A training step as people decide about it: one micro-batch, the layers between which it can be cut, and plans.

Input: a captured graph, or a `PlacementProblem`. A `Step` is the graph of one micro-batch, of which `Step.graph` makes
the graph of all, with the ops that add up their gradients. `layers` divides a graph, `borders` says where a tool
can cut it and why not elsewhere, and a `Plan` is a decision: stages, replicas, micro-batches, order. `Plan.placement`
turns it into a device for each op.
"""

__all__: list[str] = []
