"""How Penstock compiles its hot loops: one Numba decorator, with the flags that measurement chose.

Kernels release the GIL, are compiled when first called and cached on disk; where no cache folder can be
written, Numba would raise at import, so the cache is left off. ``fastmath=True`` is not used: it assumes
that there are no NaNs, and we look for them. `prefetch_line` and `prefetch_address` are the one instruction that Numba
has no word for; `pointer` makes an address one that arrays can be made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

FAST = frozenset({"reassoc", "contract", "nsz", "arcp", "afn"})
_Function = Callable[..., Any]


@overload
def kernel(function: _Function) -> _Function: ...


@overload
def kernel(*, fast: bool = True, inline: bool = False) -> Callable[[_Function], _Function]: ...


def kernel(function: _Function | None = None, *, fast: bool = True, inline: bool = False) -> Any:
    """Compile a function to native code on its first call.

    Parameters
    ----------
    function : callable
        Code in Numba's subset of Python.
    fast : bool
        Let the compiler reorder sums of floats.
    inline : bool
        Paste it into kernels that call it, for functions of a line or two.
    """

    def compile_(f: _Function) -> Any:
        options: dict[str, Any] = {
            "nogil": True,
            "fastmath": set(FAST) if fast else False,
            "inline": "always" if inline else "never",
        }
        try:
            return numba.njit(cache=True, **options)(f)
        except RuntimeError:  # no folder to keep the compiled code in
            return numba.njit(cache=False, **options)(f)

    return compile_ if function is None else compile_(function)


def load_compiler() -> None:
    """Import now what Numba would import when a kernel is first called, so that the first rows do not wait for it."""
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


@intrinsic
def prefetch_line(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of one element, to be written soon; goes on without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        _prefetch(builder, builder.bitcast(builder.gep(data, [arguments[1]]), _BYTE))
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def prefetch_address(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address, to be written soon; goes on without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _prefetch(builder, builder.inttoptr(arguments[0], _BYTE))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """Return an address as a pointer, which `numba.carray` makes an array of."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _BYTE)

    return types.voidptr(types.int64), generate


_BYTE = ir.IntType(8).as_pointer()


def _prefetch(builder: Any, place: Any) -> None:
    word = ir.IntType(32)
    shape = ir.FunctionType(ir.VoidType(), [_BYTE, word, word, word])
    ask = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0i8")
    builder.call(ask, [place, word(1), word(3), word(1)])  # for writing, into the nearest cache, of data
