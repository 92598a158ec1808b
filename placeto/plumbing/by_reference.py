"""Kernels take named tuples of many arrays by reference.

numba passes a named tuple from kernel to kernel field by field, with seven numbers for an array. It also counts a
reference to each array wherever the tuple is assigned to a name. For the forty arrays of a problem, this took a fifth
of the time to compile. So named tuples of this package with twelve fields or more, arrays among them, have another type
in numba, `Reference`: one reference to a copy of the fields. A field is read where a kernel names it. In Python they
are tuples as before. A kernel that makes such a tuple passes it on as `reference(made)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from numba.core import cgutils, types
from numba.core.boxing import unbox_tuple
from numba.core.datamodel import default_manager, models
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.experimental.jitclass.base import imp_dtor
from numba.extending import NativeValue, box, infer_getattr, intrinsic, lower_getattr_generic, typeof_impl, unbox

_MANY = 12  # fields from which on a named tuple becomes a reference


class Reference(types.Type):
    """The type of a reference to the fields of a named tuple."""

    def __init__(self, of: Any) -> None:
        self.of = of
        self.fields = dict(zip(of.fields, of.types, strict=True))
        digest = hashlib.sha256(f"{of.instance_class.__module__} {of.name}".encode()).hexdigest()
        super().__init__(f"{of.instance_class.__name__}_{digest[:16]}")  # short: it is part of each kernel's name

    def get_data_type(self) -> Any:
        """Return the type of the fields."""
        return _Fields(self)


class _Fields(types.Type):
    def __init__(self, reference: Reference) -> None:
        self.field_dict = reference.fields
        super().__init__(f"{reference.name}_fields")


class _ReferenceModel(models.StructModel):
    def __init__(self, manager: Any, of: Reference) -> None:
        super().__init__(manager, of, [("meminfo", types.MemInfoPointer(of.get_data_type()))])


default_manager.register(Reference, _ReferenceModel)
default_manager.register(_Fields, models.StructPayloadModel)


def register() -> None:
    """Let numba see named tuples of this package, of `_MANY` fields or more with arrays, as `Reference` from now on."""
    others = typeof_impl.dispatch(tuple)

    @typeof_impl.register(tuple)
    def type_of(value: tuple[Any, ...], context: Any) -> Any:
        kind = others(value, context)
        named = isinstance(kind, types.BaseNamedTuple) and type(value).__module__.startswith("placeto.")
        if named and len(value) >= _MANY and any(isinstance(field, types.Array) for field in kind.types):
            return Reference(kind)
        return kind


def _place(context: Any, builder: Any, kind: Reference, value: Any) -> Any:
    """Return a pointer to the fields of a reference."""
    meminfo = cgutils.create_struct_proxy(kind)(context, builder, value=value).meminfo
    pointer = context.get_value_type(kind.get_data_type()).as_pointer()
    return builder.bitcast(context.nrt.meminfo_data(builder, meminfo), pointer)


@infer_getattr
class _Attributes(AttributeTemplate):
    key = Reference

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]
        return kind.fields.get(name)


@lower_getattr_generic(Reference)
def _read(context: Any, builder: Any, kind: Reference, value: Any, name: str) -> Any:
    at = cgutils.gep_inbounds(builder, _place(context, builder, kind, value), 0, list(kind.fields).index(name))
    return impl_ret_borrowed(context, builder, kind.fields[name], builder.load(at))


def _new_reference(context: Any, builder: Any, kind: Reference, fields: Sequence[Any], allocate: Any) -> Any:
    """Return a reference to a copy of fields; it takes over the counted references of the fields to their arrays."""
    layout = context.get_value_type(kind.get_data_type())
    drop = imp_dtor(context, builder.module, kind)
    drop.linkage = "linkonce_odr"  # a kernel and its wrapper for Python define one each
    proxy = cgutils.create_struct_proxy(kind)(context, builder)
    proxy.meminfo = allocate(builder, context.get_constant(types.uintp, context.get_abi_sizeof(layout)), drop)
    value = proxy._getvalue()
    place = _place(context, builder, kind, value)
    for number, field in enumerate(fields):
        builder.store(field, cgutils.gep_inbounds(builder, place, 0, number))
    return value


def _reference(_typing: Any, named_tuple: Any) -> Any:
    """Return the signature of `reference` for a type of named tuple, and the function that generates its code."""
    kind = Reference(named_tuple)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        context.nrt.incref(builder, named_tuple, arguments[0])
        fields = cgutils.unpack_tuple(builder, arguments[0])
        return _new_reference(context, builder, kind, fields, context.nrt.meminfo_alloc_dtor)

    return kind(named_tuple), generate


reference: Any = intrinsic(_reference)
"""Makes a `Reference` of a named tuple that a kernel has made, if its fields are such as `register` says."""


@unbox(Reference)
def _from_python(kind: Reference, value: Any, c: Any) -> Any:
    native = unbox_tuple(kind.of, value, c)
    fields = cgutils.unpack_tuple(c.builder, native.value)
    reference_value = _new_reference(c.context, c.builder, kind, fields, c.context.nrt.meminfo_alloc_dtor_unchecked)
    return NativeValue(reference_value, is_error=native.is_error, cleanup=native.cleanup)


@box(Reference)
def _to_python(kind: Reference, value: Any, c: Any) -> Any:
    place = _place(c.context, c.builder, kind, value)
    fields = [c.builder.load(cgutils.gep_inbounds(c.builder, place, 0, n)) for n in range(len(kind.fields))]
    named_tuple = c.context.make_tuple(c.builder, kind.of, fields)
    c.context.nrt.incref(c.builder, kind.of, named_tuple)
    boxed = c.box(kind.of, named_tuple)
    c.context.nrt.decref(c.builder, kind, value)
    return boxed
