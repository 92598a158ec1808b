"""Atomic reads and writes of int64 arrays, for kernels that share them between threads.

All are sequentially consistent: a thread that loads a value sees all that another thread wrote before it stored it.
"""

from __future__ import annotations

import sys
from typing import Any

from numba import njit, types
from numba.extending import intrinsic

from placeto.plumbing.compiling import compiled

_ORDER = "seq_cst"


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _update(operation: str) -> Any:
    def typed(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _pointer(context, builder, signature.args[0], *arguments[:2])
            return builder.atomic_rmw(operation, pointer, arguments[2], _ORDER)

        return types.int64(array, types.int64, types.int64), generate

    return intrinsic(typed)


def _load(typing_context: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature.args[0], *arguments), _ORDER, 8)

    return types.int64(array, types.int64), generate


load: Any = intrinsic(_load)
"""``load(array, index)`` returns the entry."""

add, least, store = _update("add"), _update("min"), _update("xchg")
"""``add(array, index, value)``, ``least(...)`` and ``store(...)`` change the entry: to the sum, to the smaller number,
or to the value. They return the entry as it was before."""


if sys.platform == "win32":

    @njit
    def give_way() -> None:
        """Do nothing: Windows has no function that kernels can call to let another thread use the core."""

else:
    _sched_yield = types.ExternalFunction("sched_yield", types.int32())

    @compiled()
    def give_way() -> None:
        """Let another thread use the core."""
        _sched_yield()
