"""How Penstock compiles its hot loops: one Numba decorator, with the flags that measurement chose.

Kernels release the GIL, are compiled when first called and cached on disk; where no cache folder can be
written, Numba would raise at import, so the cache is left off. ``fastmath=True`` is not used: it assumes
that there are no NaNs, and we look for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import numba

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
