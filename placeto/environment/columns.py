"""The columns of an observation: their names and numbers.

Kernels and networks refer to columns as ``NODE.time`` or ``PAIR.gain``. The order here is the order in the arrays.

An op's criticality is exp(-slack / (1 % of the makespan)), so 1 for a critical op. The tightness of a transfer is the
same with the time by which it could arrive later without delaying the makespan. Busy times have no overheads.
"""

from __future__ import annotations

from typing import NamedTuple


class NodeColumns(NamedTuple):
    """Columns of each group."""

    time: int  # op times of the group on its device / best single-device makespan
    critical_time: int  # the same times, weighted by criticality / makespan
    min_slack: int  # square root of (smallest slack of an op / makespan)
    critical_wait: int  # time that ops wait for the device or a busy link, weighted by criticality / makespan, up to 4
    first_start: int  # first start of an op of the group / makespan
    last_finish: int  # last end of an op of the group / makespan
    visited: int  # 1 once the group was moved in this sweep
    tight_in: int  # times of transfers to the group from other devices, weighted by tightness / makespan
    tight_out: int  # times of transfers from the group to other devices, weighted by tightness / makespan
    memory: int  # resident memory of the group / memory of its device
    transfer_in: int  # times of all tensors read from other groups, over the mean link / single-device makespan
    transfer_out: int  # times of all tensors read by other groups, over the mean link / single-device makespan
    log_ops: int  # log(1 + number of ops) / 5
    makespan: int  # of the whole placement / single-device makespan
    lower_bound: int  # of the graph / single-device makespan
    steps_left: int  # fraction of the sweep's moves that is left
    is_current: int  # 1 at the node that the traversal has reached (fixed order only)


class PairColumns(NamedTuple):
    """Columns of each pair of a group and a device. Lateness and gain are estimates, and 0 where no move is offered."""

    current: int  # 1 if the group is on this device now
    time: int  # op times of the group on this device / single-device makespan
    time_change: int  # `time` on this device less `time` on the group's device
    load: int  # busy time of this device / makespan
    load_after: int  # busy time of this device with the group / makespan
    affinity_in: int  # times of tensors that it reads from groups on this device, mean link / single-device makespan
    affinity_out: int  # times of tensors that groups on this device read from it, mean link / single-device makespan
    affinity_change: int  # `affinity_in` + `affinity_out`, on this device less on the group's device
    tight_in: int  # the transfers of `affinity_in`, weighted by tightness / makespan
    tight_out: int  # the transfers of `affinity_out`, weighted by tightness / makespan
    late_self: int  # largest lateness of an op of the group beyond its slack, after the move / makespan, -0.3 to 1
    late_child: int  # largest lateness of a tensor at a child outside of the group / makespan, -0.3 to 1
    late_displaced: int  # largest lateness of an op that would run next on this device / makespan, -0.3 to 1
    gain: int  # largest time by which an op would end earlier, weighted by criticality / makespan, 0 to 1
    mean_late: int  # mean lateness of the group's ops, weighted by their times / makespan, 0 to 1
    wait: int  # time that the group's ops would wait for ops that are already there / makespan, 0 to 1
    memory_after: int  # resident memory on this device with the group / memory of the device
    egress: int  # times of transfers from this device / makespan
    ingress: int  # times of transfers to this device / makespan
    critical_load: int  # busy time of this device, weighted by criticality / makespan
    last_finish: int  # last end of an op on this device / makespan


class EdgeColumns(NamedTuple):
    """Columns of each ordered pair of groups of which the second reads tensors of the first."""

    transfer: int  # square root of (times of all tensors over the mean link / single-device makespan)
    cut: int  # 1 if the two are on different devices
    tight: int  # greatest tightness of a tensor, 0 to 1


NODE = NodeColumns(*range(len(NodeColumns._fields)))
PAIR = PairColumns(*range(len(PairColumns._fields)))
EDGE = EdgeColumns(*range(len(EdgeColumns._fields)))
