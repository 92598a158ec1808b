"""What ``placeto place --objective throughput`` does: the least maximal load of a device."""

from __future__ import annotations

from placeto.cli.common import say
from placeto.heuristics.throughput import StreamPlacement
from placeto.problem.units import format_bytes, format_rate, format_us
from placeto.terminal import table


def describe_stream(name: str, result: StreamPlacement) -> None:
    """Print the greatest load, the rate, whether it is the optimum, and the load and memory of each device."""
    problem = result.problem
    graph, cluster = problem.graph, problem.cluster
    kind = "contiguous split" if result.placer == "contiguous" else "split"
    greatest = cluster.device_names[int(result.loads_us.argmax())]
    single_us = float(problem.busy_us.sum(axis=0).min())
    say(f"graph        {name}: {graph.num_ops} ops, {graph.num_edges} edges, {graph.mode}")
    say(f"cluster      {cluster.name}")
    say(f"objective    throughput, {result.placer} splits, in {result.seconds:.2f} s")
    say(f"greatest load {format_us(result.greatest_us)} ({result.greatest_us:.3f} us) of {greatest}")
    rate = format_rate(1e6 / result.greatest_us) if result.greatest_us > 0 else "any number of"
    what = "steps" if graph.mode == "training" else "batches"
    say(f"             {rate} {what}/s in steady state, each a run of the graph")
    if single_us > 0:
        say(f"             {result.greatest_us / single_us:.4f} of the work on the best single device")
    if result.optimal:
        say(f"optimal      yes: no {kind} has less")
    else:
        say(f"optimal      not proven: no {kind} has less than {format_us(result.bound_us)}")
    if result.placer == "free" and result.contiguous_us < float("inf"):
        say(f"contiguous   {format_us(result.contiguous_us)} ({result.contiguous_us:.3f} us), the best that was found")
    rows = [["device", "ops", "load", "memory"]]
    counts = [int((result.placement == device).sum()) for device in range(cluster.num_devices)]
    for device, count, load_us, held in zip(
        cluster.devices, counts, result.loads_us.tolist(), result.held.tolist(), strict=True
    ):
        memory = f"{format_bytes(held)} of {format_bytes(device.memory)}"
        rows.append([device.name, f"{count}", format_us(load_us), memory])
    say(table(rows, numbers=True))
