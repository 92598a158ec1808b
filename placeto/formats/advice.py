"""Advice on whether to use data parallelism in place of a placement."""

from __future__ import annotations

from placeto.problem.problem import PlacementProblem
from placeto.problem.units import format_bytes, format_us
from placeto.simulator.tool_steps.data_parallel import DataParallel


def data_parallel_advice(problem: PlacementProblem, makespan_us: float, step: DataParallel) -> str:
    """Return a sentence that compares a replica on each device with a placement, and says which of the two to use.

    Args:
        problem: the problem of the placement.
        makespan_us: the makespan of the placement.
        step: the step of data parallelism on the same problem.
    """
    cluster, training = problem.cluster, problem.graph.mode == "training"
    if step.batches == 1:
        return "There is one device: nothing to place, and nothing to replicate."
    name = "data parallelism" if training else "a replica on each device"
    if not step.fits:
        worst = int((step.peak_memory / cluster.memory).argmax())
        needs = f"{format_bytes(int(step.peak_memory[worst]))} on {cluster.device_names[worst]}"
        return f"{_capital(name)} doesn't fit: a replica needs {needs} of {format_bytes(int(cluster.memory[worst]))}."
    least, most = step.gain(makespan_us)
    times = f"{least:.2f}" if most - least < 0.005 else f"{least:.2f} to {most:.2f}"
    took = format_us(step.least_us)
    if step.most_us > step.least_us:
        took += f" to {format_us(step.most_us)}"
    fact = f"{_capital(name)} gives {times} times the samples a second and fits, with {step.batches} batches in {took}"
    if times == "1.00":
        return f"{fact}: as many as the placement."
    if least > 1.0:
        large = f"{step.batches} times the batch is too large for one optimizer step"
        why = large if training else "it is the time of a single answer that counts"
        return f"{fact}: use it, unless {why}."
    if most < 1.0:
        return f"{fact}: the placement is faster."
    return f"{fact}: which of the two is faster depends on how much of the all-reduce runs during the backward pass."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
