"""``placeto cluster``: write a cluster file, from a preset or from what nvidia-smi prints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from placeto.cli.list import describe_cluster
from placeto.cli.shared.common import find_cluster, say
from placeto.cli.shared.options import JsonOut, Names, refuse
from placeto.errors import UsageError


@dataclass(frozen=True)
class Arguments:
    """Write a cluster file, from a preset or from what nvidia-smi prints. You can change it, and give it to --cluster.

    To make the text file, run on the machine: (nvidia-smi -L; nvidia-smi topo -m) > machine.txt. The speeds of the
    links in the cluster file are assumed, as docs/file-formats.md explains. Replace them by those that you measure.
    """

    source: Annotated[Positional[str], arg(metavar="SOURCE")]
    """a name from `placeto list clusters`, a cluster file, or a text file with what nvidia-smi prints"""
    out: JsonOut
    """the cluster file to write, .json or .json.gz"""
    kind: Names = ()
    """kind of the GPUs, such as a100, if the text file doesn't say it; or a kind for each GPU, comma-separated"""
    launch_us: Annotated[float | None, arg(metavar="US")] = None
    """microseconds in which the host launches an op on a GPU; 0 if launches never hold up the GPUs"""


def run(arguments: Arguments) -> None:
    """Read a cluster, write its file, and describe the cluster."""
    from placeto.formats.nvidia import HOW, load_machine
    from placeto.problem.cluster import CLUSTERS, of_kinds, save_cluster

    source, name = arguments.source, arguments.out.name.split(".")[0]
    if source in CLUSTERS or of_kinds(source) is not None or source.endswith((".json", ".json.gz")):
        refuse(arguments, ("kind",), f"is for what nvidia-smi prints; {source} says what its devices are")
        cluster = replace(find_cluster(source), name=name)
    elif not Path(source).is_file():
        near = get_close_matches(source.lower(), CLUSTERS, 1, 0.75)
        meant, known = f": did you mean {near[0]}? Presets" if near else "; presets", ", ".join(CLUSTERS)
        raise UsageError(f"{source!r} is no preset and no file{meant} are {known}; for this machine {HOW}")
    else:
        cluster = load_machine(source, arguments.kind, name)
    if (us := arguments.launch_us) is not None:
        if not cluster.computing:
            refuse(arguments, ("launch_us",), f"is for GPUs, and {source} has CPUs alone")
        boards = (each if each.is_cpu else replace(each, launch_us=us) for each in cluster.devices)
        cluster = replace(cluster, devices=tuple(boards))
    save_cluster(cluster, arguments.out)
    say(f"cluster      {arguments.out}: {describe_cluster(cluster)}")
