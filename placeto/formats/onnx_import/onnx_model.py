"""Inference graphs from ONNX files.

Sizes come from ONNX's own shape inference; dimensions that have a name in place of a number are bound by the user.
Weights aren't read: a file with its weights beside it takes no more memory than the file.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from placeto.errors import GraphError
from placeto.formats.onnx_import.apart import DiedError, RaisedError, call_apart
from placeto.formats.onnx_import.onnx_checks import OWN, SMALL, one_line, take_weights, title, without_functions
from placeto.formats.onnx_import.onnx_costs import PASSING, Operand, bytes_accessed, dtype_of, flops, item_bytes, kernel
from placeto.formats.onnx_import.onnx_shapes import bind, integer_of, shapes_of, with_shapes
from placeto.problem.graph import ComputationGraph
from placeto.problem.messages import quote, within

if TYPE_CHECKING:
    import onnx

_SCOPES = "pkg.torch.onnx.name_scopes"  # the metadata with the names of modules, from the whole model to the op
_LONGEST_SCOPES = 10_000  # characters
_CONTROL = {"If", "Loop", "Scan", "SequenceMap"}
_KNOWN = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}  # domains that are no part of an op's type; all others are
_STORED = {*PASSING, "Transpose"}  # ops that are done once if they read a weight, when a model is loaded
_INFERRED = 5  # the opset since which the shape of a Reshape is an input, and ONNX infers what it makes
_AXIS_IS_INPUT = 20  # the opset since which the axis of a DFT is an input
_SIZED = {"Resize", "Upsample"}  # only their first input is data
_OTHERS = "onnx.inliner", "onnx.reference"  # modules of the package onnx that are needed and load by themselves
_SECONDS, _BYTES_PER_S = 3.0, 5e3  # limit of time: a node has about 100 bytes and, at worst, takes some ms to read
_MEMORY, _COPIES = 512 * 2**20, 6  # limit of memory in bytes: so many, and six copies of the file with its weights


class _Made(NamedTuple):
    """A tensor that an op of the graph makes."""

    op: str
    output: int


def recognises(path: Path) -> bool:
    """Whether a file's name ends in ``.onnx``."""
    return path.name.endswith(".onnx")


def load(path: str | Path, dimensions: Mapping[str, int] | None = None, name: str | None = None) -> ComputationGraph:
    """Read the graph of one inference of an ONNX model.

    An op is a node. FLOPs are counted for products, convolutions and Fourier transforms, as in a captured module.
    Weights are ops of type "parameter", colocated with their first user; single numbers and lists of integers are
    constants, which are no ops. Also left out are nodes that only give a tensor another shape (Reshape, Squeeze,
    Identity ...), that transpose weights, that depend on constants alone, or that no output of the model depends on.

    Args:
        path: the path of the file.
        dimensions: name of a symbolic dimension -> its value. A dimension without a name is called by the input's name
            and the dimension's number, such as "x.0".
        name: the name of the graph; the file's by default.

    Raises:
        GraphError: not such a file, a dimension without a value, control flow, or a shape that can't be inferred;
            also if the package onnx isn't installed.
        OSError: the file can't be read.
    """
    if find_spec("onnx") is None:
        raise GraphError(f"{path}: reading it takes the package onnx: pip install 'placeto[onnx]'")
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
    sizes = {str(symbol): int(value) for symbol, value in (dimensions or {}).items()}
    limits: dict[str, Any] = {"seconds": _SECONDS + size / _BYTES_PER_S, "memory": _MEMORY + _COPIES * size}
    with within(GraphError, path):
        try:
            records = call_apart(__name__, "read_records", os.path.abspath(path), sizes, **limits, others=_OTHERS)
        except RaisedError as problem:
            raise GraphError(str(problem)) from None
        except DiedError as problem:
            raise GraphError(f"damaged, or too much for the package onnx: reading it {problem}") from None
        return ComputationGraph.from_ops(name or Path(path).name.removesuffix(".onnx"), records, "inference")


def load_here(path: str | Path, dimensions: Mapping[str, int] | None = None) -> ComputationGraph:
    """Read the graph in this process, which is faster than `load`; a damaged file may end the process.

    Raises:
        GraphError: as `load`.
        OSError: the file can't be read.
    """
    with within(GraphError, path):
        return ComputationGraph.from_ops(Path(path).stem, read_records(str(path), dict(dimensions or {})), "inference")


def read_records(path: str, dimensions: dict[str, int]) -> list[dict[str, Any]]:
    """Return the op records of an ONNX model; see `load`, which calls this in another process.

    Raises:
        GraphError: for the reasons that `load` names.
        OSError: the file can't be read.
    """
    try:
        return _records(path, dimensions)
    except (GraphError, MemoryError, OSError):
        raise
    except ImportError as problem:
        raise GraphError(f"the package onnx can't be loaded {_clue(problem)}: install it again") from None
    except Exception as problem:  # a damaged file can cause any error
        raise GraphError(f"not as ONNX defines a model {_clue(problem)}") from None


def _clue(problem: Exception) -> str:
    return f"({type(problem).__name__}: {one_line(str(problem))})"


def _records(path: str, dimensions: dict[str, int]) -> list[dict[str, Any]]:
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import checker

    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        raise GraphError("not an ONNX file") from None
    if not model.graph.node:
        raise GraphError("not an ONNX file, or a model without nodes")
    # before version 4, weights had to be inputs: some files leave them out; newer versions add fields that aren't read
    model.ir_version = min(max(model.ir_version, 4), onnx.IR_VERSION)
    model.graph.name = model.graph.name or "graph"  # the checker wants one, and says nothing else against such files
    outputs = [value.name for value in model.graph.output]
    model.graph.value_info.extend(model.graph.output)  # the checker wants outputs with shapes: here, they are inferred
    del model.graph.output[:]
    model = without_functions(model)
    weights = take_weights(model.graph, Path(path).parent)
    checker.check_model(model)
    bind(model.graph, dimensions)
    return _Importer(*with_shapes(model), weights).records(outputs)


class _Importer:
    """Turns the nodes of an ONNX graph into op records.

    Args:
        model: its nodes are those that are imported, and all its shapes are inferred.
        known: the names of the small tensors that were computed when shapes were inferred.
        weights: shapes and dtypes of the tensors that were taken from the model, by name.
    """

    def __init__(self, model: onnx.ModelProto, known: set[str], weights: Mapping[str, tuple[Any, int]]) -> None:
        graph = model.graph
        self.graph = graph
        self.opset = max((opset.version for opset in model.opset_import if opset.domain in OWN), default=0)
        self.operands = {name: Operand(*shape_and_type) for name, shape_and_type in shapes_of(graph).items()}
        self.weights: dict[str, Operand] = {}  # those that no op has read so far
        self.stored: dict[str, str] = {}  # name of a weight, or of another shape of it -> name of the weight
        self.made: dict[str, _Made | None] = {}  # tensor -> what makes it; None for an input or a constant
        self.constants: set[str] = set()
        self.known = known
        self.made |= dict.fromkeys(value.name for value in graph.input)
        for name, weight in weights.items():
            self._keep(name, Operand(*weight))
        self.unread = {name for name in self.constants if self.operands[name].elements <= SMALL}  # shapes, perhaps
        for tensor in graph.initializer:
            self._keep(tensor.name, Operand(tuple(tensor.dims), tensor.data_type))
        self.ops: list[dict[str, Any]] = []
        self.names: set[str] = set()
        self.taken: Counter[str] = Counter()  # name -> the last number that was put behind it

    def records(self, outputs: Sequence[str]) -> list[dict[str, Any]]:
        """Return the op records of all nodes that outputs of the model depend on.

        Args:
            outputs: the names of all outputs.

        Raises:
            GraphError: a node can't be imported, or nothing makes an output; the message names it.
        """
        needed = set(outputs)
        nodes: list[onnx.NodeProto] = []
        for node in reversed(self.graph.node):  # a node is behind those that it reads from
            if not needed.isdisjoint(filter(None, node.output)):
                needed.update(node.input)
                nodes.append(node)
        for node in reversed(nodes):
            try:
                self._visit(node)
            except GraphError:
                raise
            except (LookupError, TypeError, ValueError, ArithmeticError) as problem:
                clue = one_line(f"{type(problem).__name__}: {problem}")
                raise GraphError(f"{title(node)}: not as ONNX defines {quote(node.op_type)} ({clue})") from None
        for name in outputs:
            if name not in self.made and name not in self.stored:
                raise GraphError(f"nothing makes {quote(name)}, an output of the model")
        return self.ops

    def _keep(self, name: str, value: Operand) -> None:
        """Register a tensor whose values are in the file, as a weight or as a constant.

        Constants are tensors that were computed beforehand, single numbers and lists of integers.
        """
        self.operands[name] = value
        self.made.pop(name, None)
        if name in self.known or value.elements == 1 or (len(value.shape) < 2 and not value.is_float):
            self._know(name)
        else:
            self.weights[name] = value
            self.stored[name] = name

    def _know(self, *names: str) -> None:
        self.constants |= set(names)
        self.made |= dict.fromkeys(names)

    def _visit(self, node: onnx.NodeProto) -> None:
        """Register what a node makes: a constant, another form of a weight or of a tensor, or the outputs of an op."""
        if node.op_type in _CONTROL:
            raise GraphError(f"{title(node)}: {node.op_type} is control flow, which a graph doesn't have")
        inputs = [name for name in node.input if name]
        outputs = [name for name in node.output if name]
        unread = self.unread.intersection(inputs)
        if unread and not self.operands.keys() >= set(outputs):
            clue = f"the values of {quote(min(unread))} are in another file, which can't be read"
            raise GraphError(f"{title(node)}: its shape isn't known: {clue}")
        if node.op_type in ("Constant", "Shape", "Size") or (inputs and self.constants.issuperset(inputs)):
            self._know(*outputs)
            return
        if node.op_type in _STORED and inputs[0] in self.stored:
            self.stored[outputs[0]] = self.stored[inputs[0]]
            return
        if node.op_type in PASSING:
            self.made[outputs[0]] = self.made.get(inputs[0])
            return
        for name in (*inputs, *outputs):
            if name not in self.operands:
                kind, reason = quote(node.op_type)[1:-1], self._why_unknown(node)
                raise GraphError(f"{title(node)}: the shape of {quote(name)} isn't known ({kind}); {reason}")
        if node.op_type in _SIZED:
            for name in inputs[1:]:
                if self.weights.pop(name, None):
                    self._know(name)
        self._add(node, inputs, outputs)

    def _add(self, node: onnx.NodeProto, inputs: list[str], outputs: list[str]) -> None:
        """Append the record of a node, behind the records of the weights that it is the first to read."""
        title = node.name.strip("/") or f"{node.op_type}"
        read, written = ([self.operands[name] for name in names] for names in (inputs, outputs))
        attributes = _attributes(node)
        if node.op_type == "DFT" and self.opset >= _AXIS_IS_INPUT:
            attributes["axis"] = integer_of(self.graph, node.input[2]) if len(node.input) > 2 and node.input[2] else -2
        shapes = [self.operands.get(name) for name in node.input]
        work = flops(node.op_type, shapes, written, attributes) if node.domain in OWN else 0
        first = {name: number for number, name in reversed(list(enumerate(node.input)))}
        once = [self.operands.get(name) if first[name] == i else None for i, name in enumerate(node.input)]
        stored = [self.stored.get(name, name) for name in inputs]
        fresh = [self._weight(name) for name in dict.fromkeys(stored) if name in self.weights]
        sources = [self.made.get(name) for name in stored]
        op = {
            "name": self._unique(title),
            "type": f"onnx.{node.op_type}" if node.domain in _KNOWN else f"onnx.{node.domain}.{node.op_type}",
            "module": _module(node),
            "flops": float(work),
            "bytes_accessed": float(bytes_accessed(node.op_type, once, written)),
            "dtype": dtype_of(read, written, bool(work)),
            "kernel": kernel(node.op_type, read, attributes),
            "inputs": list(dict.fromkeys(source for source in sources if source is not None)),
            "outputs": [item_bytes(operand) for operand in written],
        }
        for weight in fresh:
            op["colocation"] = weight["colocation"] = op["name"]
        self.ops += [*fresh, op]
        self.made |= {name: _Made(str(op["name"]), number) for number, name in enumerate(outputs)}

    def _why_unknown(self, node: onnx.NodeProto) -> str:
        if node.domain not in OWN:
            whose = f"ops of {quote(node.domain)}"
            return f"ONNX infers no shapes for {whose}: the file must give them, as value_info"
        if "Sequence" in node.op_type or node.op_type.startswith("Optional"):
            return "only tensors can be imported, no sequences or options of them"
        if self.opset < _INFERRED:
            return f"ONNX infers few shapes of opset {self.opset}: convert the model by onnx.version_converter"
        return "shapes that depend on values can't be imported"

    def _weight(self, name: str) -> dict[str, Any]:
        """Return the record of a weight, which isn't among the unread ones any more."""
        size = item_bytes(self.weights.pop(name))
        unique = self._unique(name)
        self.made[name] = _Made(unique, 0)
        module = name.rpartition(".")[0]
        return {"name": unique, "type": "parameter", "module": module, "param_bytes": size, "outputs": [size]}

    def _unique(self, name: str) -> str:
        """Return a name that no other op has: this one, with a number behind it if it is taken."""
        unique = name
        while unique in self.names:
            self.taken[name] += 1
            unique = f"{name}_{self.taken[name]}"
        self.names.add(unique)
        return unique


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    from onnx import helper

    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _module(node: onnx.NodeProto) -> str:
    """Return the path of the module that a node comes from; PyTorch's exporters write it to its metadata or name."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES and len(entry.value) < _LONGEST_SCOPES:
            try:
                return str(ast.literal_eval(entry.value)[-2])
            except (ValueError, SyntaxError, LookupError, TypeError, RecursionError, MemoryError):
                break
    return ".".join(node.name.strip("/").split("/")[:-1])
