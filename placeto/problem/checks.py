"""Checks of documents, settings and arguments, by pydantic: types say which values a field may have.

A class of records is a `TypedDict` whose fields have types such as `Number`, or a dataclass:

    class Link(Record, total=False):
        bandwidth: Required[Positive]  # bytes/s
        latency_us: Number

    with within(ClusterError, path):
        link = checked(document, Link, ClusterError)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, NotRequired, get_type_hints

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import SchemaValidator, core_schema
from typing_extensions import TypedDict

from placeto.problem.messages import quote

INT64_MAX = 2**63 - 1
_LONG = 200  # characters of a message, after which it tells no further fault
_SHORTER = (
    (r"^Value error, ", ""),
    (r"^Input should |^(List|Tuple|String) should ", "must "),
    (r" or an instance of \w+| after validation", ""),
    (r", unable to parse raw data as a unicode string", " without halves of surrogate pairs"),
    (r"a valid ", "a "),
    (r"a dictionary", "an object"),
    (r"a tuple", "a list"),
    (r"a integer", "an integer"),
    (r"greater than or equal to", ">="),
    (r"less than or equal to", "<="),
    (r"greater than", ">"),
    (r"less than", "<"),
)
"""What pydantic says -> how messages say it."""


def whole(value: Any) -> Any:
    """Return a float without fraction as an integer, other values as they are."""
    return int(value) if type(value) is float and value.is_integer() else value


Text = Annotated[str, Field(strict=True, min_length=0)]  # the length makes pydantic refuse halves of surrogate pairs
Name = Annotated[str, Field(strict=True, min_length=1)]
Flag = Annotated[bool, Field(strict=True)]
Number = Annotated[float, Field(strict=True, ge=0.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0.0, allow_inf_nan=False)]
Index = Annotated[int, Field(strict=True, ge=0, le=INT64_MAX)]
Count = Annotated[int, Field(strict=True, ge=1, le=INT64_MAX)]
Size = Annotated[int, Field(strict=True, ge=0, le=INT64_MAX), BeforeValidator(whole)]
"""Bytes, which may be written as a float such as 16e9."""


@dataclass(frozen=True)
class OneOf:
    """Annotates strings that are one of those given."""

    known: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return core_schema.literal_schema(list(self.known))


CLOSED = ConfigDict(extra="forbid", allow_inf_nan=False)
"""The configuration of records that refuse other fields than their own."""


class Record(TypedDict):
    """An object of a document: other fields than its own are refused."""

    __pydantic_config__ = CLOSED  # type: ignore[misc]


class OpenRecord(TypedDict):
    """An object of a document, of which only its own fields are read: others are left out."""

    __pydantic_config__ = ConfigDict(extra="ignore")  # type: ignore[misc]


def record_type(name: str, required: Mapping[str, Any], optional: Mapping[str, Any]) -> Any:
    """Return a class of records like `Record`, given the types of its fields; names such as "from" are possible."""
    made = TypedDict(name, {**required, **{key: NotRequired[kind] for key, kind in optional.items()}})  # type: ignore
    made.__pydantic_config__ = CLOSED  # type: ignore[attr-defined]
    return made


@cache
def record_of(kind: type, /, **optional: Any) -> Any:
    """Return the class of records with the fields of a dataclass.

    Fields with defaults are optional, and so are those in `optional`, which have the types that are given there.
    """
    hints, required = get_type_hints(kind, include_extras=True), dict[str, Any]()
    for field in fields(kind):
        needed = field.default is MISSING and field.default_factory is MISSING and field.name not in optional
        (required if needed else optional).setdefault(field.name, hints[field.name])
    return record_type(kind.__name__, required, optional)


def checked(value: Any, kind: Any, error: type[ValueError], what: str = "", *, strict: bool | None = None) -> Any:
    """Return a value as one of a kind; lists may be tuples, unless `strict` is set.

    Raises:
        error: it is no such value. The message has the paths of the fields that are wrong, after `what`, and for each
            of them what would be right.
    """
    try:
        return adapter(kind).validate_python(value, strict=strict)
    except ValidationError as problem:
        raise error(_sentence(problem.errors(include_url=False), value, what, adapter(kind).json_schema())) from None


def read_document(document: Any, form: str, what: str, kind: Any, error: type[ValueError]) -> Any:
    """Return the content of a file, a record without its field "format".

    Args:
        document: the parsed file.
        form: the format that the file must have, such as "placeto.graph/1".
        what: what the file must be, for the message, such as "a graph file".
        kind: the record.
        error: the exception that is raised, as in `checked`.
    """
    if not isinstance(document, dict) or document.get("format") != form:
        given = document.get("format") if isinstance(document, dict) else None
        found = f", not {quote(given)}" if isinstance(given, str) else ""
        raise error(f'not {what}: "format" must be "{form}"{found}')
    return checked({key: value for key, value in document.items() if key != "format"}, kind, error)


def check_fields(instance: Any, error: type[ValueError], what: str = "", kind: Any = None) -> None:
    """Check the fields of a new instance of a frozen dataclass, and set them to plain values: none of numpy.

    Integers stay integers where a float is expected, because hashes of a file's content depend on it.

    Args:
        instance: the instance.
        error: the exception that is raised, as in `checked`.
        what: the path of the instance, for the message.
        kind: a record with those of the fields that are checked; None = all of them, by their types.
    """
    kind = kind or record_of(type(instance))  # type: ignore[arg-type]
    given = {key: _plain(getattr(instance, key)) for key in kind.__annotations__}
    for key, value in checked(given, kind, error, what).items():
        object.__setattr__(instance, key, given[key] if type(given[key]) is int else value)


def check_choice(value: Any, known: Collection[str], key: str, error: type[ValueError]) -> None:
    """Raise the error unless the value is one of the known strings."""
    if not isinstance(value, str) or value not in known:
        raise error(f"{key} must be one of {', '.join(known)}, not {quote(value)}")


def check_array(value: Any, key: str, kind: type[np.generic], length: int, error: type[ValueError]) -> None:
    """Raise the error unless the value is an array of shape (length,) and of dtype `kind`."""
    if not isinstance(value, np.ndarray) or value.dtype != kind or value.shape != (length,):
        found = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else quote(value)
        raise error(f"{key} must be an array of {length} {kind.__name__}, not {found}")


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the checker of a type; it also makes the type's JSON schema.

    In each list and dict it finds the first fault only: millions of faults would take gigabytes.
    """
    made = TypeAdapter(kind)
    _fail_fast(made.core_schema)
    made.validator = SchemaValidator(made.core_schema)
    return made


def _fail_fast(schema: Any) -> None:
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list | tuple) else ()
    for part in parts:
        _fail_fast(part)
    if isinstance(schema, dict) and schema.get("type") in ("list", "dict", "tuple"):
        schema["fail_fast"] = True


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _sentence(faults: Sequence[Any], document: Any, what: str, schema: Any) -> str:
    """Say what is wrong with a document: for each field, what pydantic says about it or about its alternatives."""
    faults_at: dict[str, tuple[list[str], Any]] = {}  # path -> what is said, and the value
    for fault in faults:
        path, rule = _path(fault["loc"], document, what, fault["type"] == "missing"), _said(fault, schema)
        rules = faults_at.setdefault(path, ([], fault["input"]))[0]
        if rule not in rules:
            rules.append(rule)
    parts = [path for path in faults_at if not any(other.startswith((f"{path}.", f"{path}[")) for other in faults_at)]
    told = list[str]()
    for path in parts:
        if sum(map(len, told)) > _LONG:
            return f"{'; '.join(told)}; and {len(parts) - len(told)} more"
        rules, value = faults_at[path]
        shown = f", not {quote(value)}" if rules[0].startswith("must") else ""
        said = " or ".join([rules[0], *(rule.removeprefix("must be ") for rule in rules[1:])])
        told.append(f"{path} {said}{shown}".strip())
    return "; ".join(told)


def _said(fault: Any, schema: Any) -> str:
    if fault["type"] == "missing":
        return "is missing"
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"is unknown; known: {', '.join(_known(schema, schema, fault['loc'][:-1]))}"
    text = fault["msg"]
    for pattern, short in _SHORTER:
        text = re.sub(pattern, short, text)
    return text


def _known(schema: Any, part: Any, location: Sequence[Any]) -> list[str]:
    """Return the fields that a JSON schema knows at a location of documents."""
    if "$ref" in part:
        return _known(schema, schema["$defs"][part["$ref"].rpartition("/")[2]], location)
    if "anyOf" in part:
        return next(filter(None, (_known(schema, one, location) for one in part["anyOf"])), [])
    fields = part.get("properties", {})
    if not location:
        return sorted(fields)
    inner = fields.get(location[0], part.get("items", part.get("additionalProperties")))
    return _known(schema, inner, location[1:]) if isinstance(inner, dict) else _known(schema, part, location[1:])


def _path(location: Sequence[Any], document: Any, what: str, missing: bool) -> str:
    """Return the path of a field, with names of records where they have one, such as devices['gpu:0'].flops."""
    path, value = what, document
    for position, part in enumerate(location):
        last = missing and position == len(location) - 1
        if isinstance(value, Mapping) and (part in value or last):
            value = value.get(part)
            shown = part if isinstance(part, str) and part.isidentifier() and part in quote(part) else None
            path += f"[{quote(part)}]" if shown is None else f".{shown}" if path else shown
        elif isinstance(value, list | tuple) and isinstance(part, int) and (part < len(value) or last):
            value = value[part] if part < len(value) else None
            name = value.get("name") if isinstance(value, Mapping) else None
            path += f"[{quote(name) if isinstance(name, str) else part}]"
        # else it is an alternative of the type
    return path
