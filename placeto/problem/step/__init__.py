"""A step as people decide about it: the graph of one micro-batch, and what its micro-batches share.

Input: the graph of one micro-batch, and the number of micro-batches. Output: the graph of all of them, with the ops
that add up their gradients.
"""

from placeto.problem.step.micro_batches import Step, in_micro_batches

__all__ = ["Step", "in_micro_batches"]
