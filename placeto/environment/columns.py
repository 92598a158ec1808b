"""The columns of an observation: their names, and by these names their numbers.

Kernels and networks say ``NODE.time`` and ``PAIR.gain``; the order here is the order in the arrays.
"""

from __future__ import annotations

from typing import NamedTuple


class NodeColumns(NamedTuple):
    """What is known of each group."""

    time: int  # of the group on its device / best single-device makespan
    critical_time: int  # the same, each op weighted by its criticality / makespan
    min_slack: int  # square root of the smallest slack / makespan
    critical_wait: int  # critical ops' waiting for the device or a loaded link / makespan
    first_start: int  # / makespan
    last_finish: int  # / makespan
    visited: int  # 1 once moved in this sweep
    tight_in: int  # transfers that arrive just in time / makespan
    tight_out: int
    memory: int  # resident parameters / memory of its device
    transfer_in: int  # all tensors read from other groups, over the mean link / single-device makespan
    transfer_out: int
    log_ops: int
    makespan: int  # of the whole placement / single-device makespan
    lower_bound: int  # of the graph / single-device makespan
    steps_left: int  # fraction of the sweep still to go
    is_current: int  # 1 at the node that the traversal has reached (fixed order only)


class PairColumns(NamedTuple):
    """What is known of each (group, device) pair."""

    current: int  # the group is on this device now
    time: int  # of the group there / single-device makespan
    time_change: int  # there less here
    load: int  # busy time of the device / makespan
    load_after: int
    affinity_in: int  # transfer time of tensors read from groups there / single-device makespan
    affinity_out: int  # transfer time of tensors read by groups there
    affinity_change: int  # both, there less here
    tight_in: int  # of these, the ones that arrive just in time / makespan
    tight_out: int
    late_self: int  # largest lateness of an op of the group against its slack, if moved / makespan
    late_child: int  # largest lateness of data for a child outside of the group
    late_displaced: int  # largest lateness caused to the next op on that device
    gain: int  # how much earlier critical ops would finish
    mean_late: int  # time-weighted lateness
    wait: int  # time that the group's ops would wait for ops already there
    memory_after: int  # resident parameters there after the move / its memory
    egress: int  # transfer time sent from the device / makespan
    ingress: int
    critical_load: int  # busy time weighted by criticality / makespan
    last_finish: int  # of the device / makespan


class EdgeColumns(NamedTuple):
    """What is known of each ordered pair of groups that exchange tensors."""

    transfer: int  # square root of all tensors' transfer time over the mean link / single-device makespan
    cut: int  # 1 where the two are on different devices
    tight: int  # how nearly the most urgent tensor arrives too late, 0 to 1


NODE = NodeColumns(*range(len(NodeColumns._fields)))
PAIR = PairColumns(*range(len(PairColumns._fields)))
EDGE = EdgeColumns(*range(len(EdgeColumns._fields)))
