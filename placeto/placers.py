"""Find things by name: placers, graph families, and graphs as the command line names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache, update_wrapper
from importlib.metadata import EntryPoint, entry_points
from inspect import getsourcefile, isroutine, signature, unwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from placeto.errors import GraphError, PlacerError, PlacetoError
from placeto.plumbing import extensions
from placeto.plumbing.extensions import described, load_extension, named_extensions, raised
from placeto.pretrained import pretrained_path
from placeto.problem.graph import ComputationGraph, load_graph
from placeto.problem.messages import within

if TYPE_CHECKING:
    from placeto.problem.problem import PlacementProblem
    from placeto.simulator.evaluator import PlacementResult

GRAPH_HELP = (
    "a file (.json, .json.gz, .onnx, PipeDream .graph.txt, dnn-partitioning .json, DOPPLER nodes.txt, .stg) or "
    "family:split:index, e.g. cifar10:test:3"
)
DEFAULT_PLACER = "placeto"
_FAMILY = "name", "description", "splits", "load"  # attributes that every graph family has
LEARNED = {
    "placeto": "Search guided by a graph neural network that scores moves of groups; comes with a trained policy.",
    "placeto-paper": "The published Placeto: a network visits the groups in topological order; needs a checkpoint.",
    "seq2seq": "An LSTM with attention reads all groups, then names a device for each in turn; needs a checkpoint.",
    "grouper": "One network groups the ops, a sequence-to-sequence network places the groups; needs a checkpoint.",
    "gdp": "GraphSAGE and a Transformer-XL over segments place all ops at once; needs a checkpoint.",
    "constructive": "A graph neural network reads the graph; groups then get devices in turn; needs a checkpoint.",
    "mlp": "A control: one small network places each group by its own features, without graph; needs a checkpoint.",
}


class Placer(Protocol):
    """The interface of all placers, learned or not."""

    def __call__(
        self,
        problem: PlacementProblem,
        *,
        simulations: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
    ) -> PlacementResult:
        """Place a graph within a budget of simulations, of seconds or of both; without a budget, the placer decides."""


def placer_names() -> dict[str, str]:
    """Every placer's name with a sentence about it.

    Raises:
        PlacerError: a package that adds learned placers can't be used.
    """
    from placeto.heuristics import HEURISTICS
    from placeto.policies.external import ExternalPolicy, find_policy, policy_names

    sentences = {name: first_line(heuristic) for name, heuristic in HEURISTICS.items()}
    sentences |= {name: first_line(_load(name)) for name in _others()} | LEARNED
    policies = {name: find_policy(name) for name in policy_names()}
    return sentences | {name: each.sentence for name, each in policies.items() if isinstance(each, ExternalPolicy)}


def is_heuristic(name: str) -> bool:
    """Whether a placer of this name doesn't learn: one of Placeto, or one of another package.

    Raises:
        PlacerError: two packages have a placer of the same name, or one has a name of Placeto's.
    """
    from placeto.heuristics import HEURISTICS

    return name in HEURISTICS or name in _others()


@cache
def _others() -> dict[str, EntryPoint]:
    """Return the heuristics of other packages by name; they aren't imported."""
    from placeto.heuristics import HEURISTICS
    from placeto.policies.external import policy_names

    return named_extensions(extensions.PLACERS, {*HEURISTICS, *policy_names()})


@cache
def _load(name: str) -> Placer:
    """Return a heuristic of another package, which raises a PlacerError for what goes wrong in it.

    Raises:
        PlacerError: it can't be imported, or is no function that takes a problem and a budget.
    """
    point = _others()[name]
    function = load_extension(point)
    try:
        signature(function).bind(None, simulations=None, seconds=None, seed=0)
    except (TypeError, ValueError):
        how = "(problem, *, simulations=None, seconds=None, seed=0)"
        raise PlacerError(f"{described(point)}: must be a function {how}, not {function!r:.60}") from None

    def place(
        problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
    ) -> PlacementResult:
        from placeto.simulator.evaluator import PlacementResult

        try:
            result = function(problem, simulations=simulations, seconds=seconds, seed=seed)
        except PlacetoError:
            raise
        except Exception as wrong:  # of the package's own code
            raise PlacerError(f"{described(point)} failed: {raised(wrong)}") from wrong
        if not isinstance(result, PlacementResult):
            raise PlacerError(f"{described(point)}: must return a PlacementResult, not {result!r:.60}")
        return replace(result, placer=name)

    return update_wrapper(place, function)


def source_of(name: str) -> Path | None:
    """Return the file with the code of a heuristic of another package; None for other placers."""
    if name not in _others():
        return None
    function = unwrap(_load(name))
    return Path(getsourcefile(function if isroutine(function) else type(function)) or name)


def load_placer(name_or_checkpoint: str | Path, whole_modules: bool | Sequence[str] = False) -> Placer:
    """Return a placer by its name, or a learned one from a checkpoint or a run directory.

    The name of a learned placer stands for the checkpoint in the package, if there is one. At the first call with a
    budget of seconds, the kernels of a learned placer are compiled and loaded. This time is no part of the budget.

    Args:
        name_or_checkpoint: a name from `placer_names`, or the path of a checkpoint or of a run directory.
        whole_modules: True: the placer keeps each block of a model on one device, as `placeto.place` does. A list of
            paths: it also keeps each of these modules on one device.

    Raises:
        PlacerError: there is neither a placer nor a file of this name, or the placer needs a checkpoint; or two
            installed packages have a learned placer of the same name, or one has a name of Placeto's.
        TrainingError: the file is no checkpoint.
    """
    from placeto.heuristics import HEURISTICS
    from placeto.policies.external import policy_names

    if whole_modules is not False:
        return keeping_modules(load_placer(name_or_checkpoint), () if whole_modules is True else tuple(whole_modules))
    name, learned = str(name_or_checkpoint), policy_names()
    known = [*HEURISTICS, *_others(), *learned]
    if not name.strip():
        raise PlacerError(f"the name of a placer is empty; placers: {', '.join(known)}")
    if name in HEURISTICS:
        return HEURISTICS[name]
    if name in _others():
        return _load(name)
    if (pretrained := pretrained_path(name)) is not None:
        from placeto.policies.guided_search import guided_placer
        from placeto.policies.weights import load_weights

        return guided_placer(load_weights(pretrained))
    if name in learned:
        raise PlacerError(f"placer {name!r} is learned: give a checkpoint made by `placeto train` (--checkpoint PATH)")
    if Path(name).exists():
        return _load_learned(name)[1]
    near = get_close_matches(name.lower(), known, 1)
    meant = f"; did you mean {near[0]}? Placers" if near else "; placers"
    raise PlacerError(f"no placer and no checkpoint is called {name!r}{meant}: {', '.join(known)}")


def keeping_modules(placer: Placer, undivided: tuple[str, ...] = ()) -> Placer:
    """Return a placer that keeps each block of a model on one device, and each of the `undivided` modules as well.

    In a model without blocks, it keeps each module on one device. When the returned placer is called, it raises an
    PlanError if the graph has no modules, or lacks one that is named.
    """

    def place(
        problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
    ) -> PlacementResult:
        from placeto.problem.step.whole_modules import whole_modules

        whole = replace(problem, graph=whole_modules(problem.graph, undivided))
        result = placer(whole, simulations=simulations, seconds=seconds, seed=seed)
        return replace(result, problem=problem.under(result.problem.dispatch))

    return place


def zero_shot(placer: Placer, problem: PlacementProblem, seed: int = 0) -> PlacementResult:
    """Place without a budget; `placeto` then makes one pass of its policy, in place of a search."""
    return getattr(placer, "one_pass", placer)(problem, seed=seed)


def choose_placer(name: str | None, checkpoint: str | Path | None) -> tuple[str, Placer]:
    """Return name and function of the placer that the command line gives; `DEFAULT_PLACER` if it gives none.

    Raises:
        PlacerError: there is no such placer, or the checkpoint is of another placer.
        TrainingError: the file is no checkpoint.
    """
    if checkpoint is None:
        name = DEFAULT_PLACER if name is None else name
        return name, load_placer(name)
    learned, placer = _load_learned(checkpoint)
    if name not in (None, learned):
        raise PlacerError(
            f"{checkpoint} holds the placer {learned!r}, not {name!r}: leave --placer or --checkpoint out"
        )
    return learned, placer


def throughput_placer(name: str | None) -> tuple[str, Placer]:
    """Return name and function of a placer of the objective throughput; `free` if none is named.

    Raises:
        PlacerError: the objective throughput has no such placer.
    """
    from placeto.heuristics.throughput import THROUGHPUT

    name = "free" if name is None else name
    if name not in THROUGHPUT:
        raise PlacerError(f"the objective throughput has the placers {' and '.join(THROUGHPUT)}, not {name!r}")
    return name, THROUGHPUT[name]


def _load_learned(path: str | Path) -> tuple[str, Placer]:
    from placeto.environment.env_config import EnvConfig
    from placeto.policies import placer_of
    from placeto.policies.guided_search import search_settings
    from placeto.training.checkpoint import check_shapes, load_checkpoint, matching, policy_of
    from placeto.training.config import check_loaded

    checkpoint = load_checkpoint(path)
    name, entry = policy_of(checkpoint, path)
    with matching(path):
        config = checkpoint["config"]
        settings = entry.config(**config["policy"])
        check_loaded(policy=settings)
        if entry.kind == "iterative":
            check_loaded(env=EnvConfig(**config["env"]), search=search_settings(config))
        check_shapes(entry.policy, settings, checkpoint["best_parameters"])
        network = entry.make(settings)
        network.load_state_dict(checkpoint["best_parameters"])
        return name, placer_of(entry.kind, checkpoint, network.eval())


@cache
def families() -> dict[str, tuple[EntryPoint, Mapping[str, Any]]]:
    """Return what offers each graph family, by the family's name: an entry point in ``placeto.families``.

    The values are the entry point of an installed package, and the dictionary of families that it names. The families
    themselves are loaded by `load_family`, because many of them import torch.

    Raises:
        PlacerError: an entry point can't be imported, what it names is no dictionary of families, or two packages
            have a family of the same name.
    """
    offered: dict[str, tuple[EntryPoint, Mapping[str, Any]]] = {}
    for point in entry_points(group=extensions.FAMILIES):
        added = load_extension(point)
        if not isinstance(added, Mapping):
            raise PlacerError(f"{described(point)}: must be a dictionary of families, not {added!r:.60}")
        for name in added:
            if not isinstance(name, str):
                raise PlacerError(f"{described(point)}: the name of a family must be text, not {name!r:.60}")
            if name in offered:
                raise PlacerError(f"{described(point)}: another package has a family {name!r}, too: uninstall one")
            offered[name] = point, added
    return offered


def load_family(name: str) -> Any:
    """Return a graph family by its name.

    Raises:
        PlacerError: no such family is installed; or a package offers something else under this name.
    """
    if name not in families():
        known = ", ".join(families()) or "none is installed (pip install -e . in the source tree)"
        if Path(name).is_dir():
            raise PlacerError(f"graph family {name!r}: is a directory; give its files as graphs ({name}/*.json)")
        raise PlacerError(f"unknown graph family {name!r}; known: {known}")
    point, offered = families()[name]
    family = offered[name]
    if lacking := [part for part in _FAMILY if not hasattr(family, part)]:
        raise PlacerError(f"{described(point)}: the family {name!r} has no {lacking[0]}")
    if isinstance(family, type):
        raise PlacerError(f"{described(point)}: the family {name!r} is a class, it must be an object")
    sizes = family.splits.values() if isinstance(family.splits, Mapping) else [None]
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise PlacerError(
            f"{described(point)}: splits of the family {name!r} must be numbers of graphs by name, such as "
            f"{{'train': 4, 'test': 2}}, not {family.splits!r:.60}"
        )
    return family


def _graph(family: str, split: str, index: int) -> ComputationGraph:
    """Load one graph of a family.

    Raises:
        PlacerError: the family returns something else than a graph.
        GraphError: the graph is invalid.
    """
    with within(GraphError, f"{family}:{split}:{index}"):
        graph = load_family(family).load(split, index)
    if not isinstance(graph, ComputationGraph):
        where = described(families()[family][0])
        raise PlacerError(
            f"{where}: load of the family {family!r} must return a ComputationGraph, not {type(graph).__name__}"
        )
    return graph


def load_split(family: str, split: str, count: int | None = None) -> dict[str, ComputationGraph]:
    """Return the graphs of a split, or the first `count` of them, by their full name ``family:split:index``.

    `count` may be larger than the split if the family has the split among its `endless` ones.

    Raises:
        PlacerError: there is no such family or split, it has no graphs, or `count` isn't from 1 to their number.
    """
    size = split_size(family, split)
    if size == 0:
        raise PlacerError(f"{family}:{split} has no graphs: take another split, or give other graphs")
    if count is not None and not (1 <= count <= size or (count > size and is_endless(family, split))):
        raise PlacerError(f"{family}:{split} has {size} graphs: 1 to {size} can be taken, not {count}")
    return {f"{family}:{split}:{i}": _graph(family, split, i) for i in range(size if count is None else count)}


def split_size(family: str, split: str) -> int:
    """Return how many graphs a split has.

    Raises:
        PlacerError: there is no such family or split.
    """
    splits: Mapping[str, int] = load_family(family).splits
    if split not in splits:
        raise PlacerError(f"family {family!r} has no split {split!r}; its splits: {', '.join(splits)}")
    return splits[split]


def is_endless(family: str, split: str) -> bool:
    """Whether a split has more graphs than `split_size` says: the family draws as many as are asked for."""
    return split in getattr(load_family(family), "endless", ())


def resolve_graph(argument: str) -> tuple[str, ComputationGraph]:
    """Return the name to show for a graph, and the graph, which is given as a file or as ``family:split:index``.

    Raises:
        PlacerError: the argument is neither.
        GraphError: the file is no graph.
    """
    parts = argument.split(":")
    if Path(argument).is_file() or len(parts) != 3:
        return argument, _load_file(argument)
    family, split, index = parts
    size = split_size(family, split)
    if not (index.isascii() and index.isdigit() and (int(index) < size or is_endless(family, split))):
        valid = f"index must be 0 to {size - 1}, not {index!r}" if size else f"the split {split!r} has no graphs"
        raise PlacerError(f"graph {argument!r}: {valid}")
    return argument, _graph(family, split, int(index))


def _load_file(argument: str) -> ComputationGraph:
    from placeto.formats.importers import find_importer

    path = Path(argument)
    if not path.exists():
        raise PlacerError(f"graph {argument!r}: no such file; a graph is {GRAPH_HELP}")
    if path.is_dir():
        raise PlacerError(
            f"graph {argument!r}: is a directory, give its files ({path}/*.json); a graph is {GRAPH_HELP}"
        )
    if (importer := find_importer(path)) is not None:
        return importer.load(path)
    if not path.name.endswith((".json", ".json.gz")):
        raise GraphError(f"{path}: unknown kind of graph file; a graph is {GRAPH_HELP}")
    return load_graph(path)


def first_line(described: Any) -> str:
    """Return the first line of an object's docstring; "" if it has none."""
    return (described.__doc__ or "").strip().split("\n")[0]
