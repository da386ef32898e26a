"""Orders: pure plans of the sequence in which rows are visited.

Examples
--------
>>> sorted(ORDERS)
['block-only', 'corgipile', 'epoch', 'global', 'mrs', 'none', 'once', 'sliding-window']
>>> order("corgipile").facts.exact
True
"""

from __future__ import annotations

from penstock.errors import UnknownOptionError
from penstock.shuffle.base import Mix, Mixer, Order, OrderFacts, RowWindow, Shape, Window
from penstock.shuffle.baselines import BlockOnly, Mrs, SlidingWindow, Stored
from penstock.shuffle.corgipile import CorgiPile
from penstock.shuffle.global_ import Global

__all__ = [
    "ORDERS",
    "BlockOnly",
    "CorgiPile",
    "Global",
    "Mix",
    "Mixer",
    "Mrs",
    "Order",
    "OrderFacts",
    "RowWindow",
    "Shape",
    "SlidingWindow",
    "Stored",
    "Window",
    "order",
]

# In the order in which they are compared.
_ALL: tuple[Order, ...] = (
    Stored("none", OrderFacts("rows as they are stored")),
    BlockOnly(),
    CorgiPile(),
    SlidingWindow(),
    Mrs(),
    Stored("once", OrderFacts("one shuffled copy", copy="once", note="writes a shuffled copy first")),
    Stored(
        "epoch", OrderFacts("a new copy each epoch", copy="epoch", note="writes a shuffled copy before every epoch")
    ),
    Global(),
)
ORDERS: dict[str, Order] = {each.name: each for each in _ALL}
"""Every order by its name; the entry of an order is its registration."""


def order(name: str) -> Order:
    """Return the order of this name, or say which names there are.

    Examples
    --------
    >>> order("corgipil")
    Traceback (most recent call last):
    penstock.errors.UnknownOptionError: shuffle='corgipil' is not known; choose one of: block-only, corgipile, \
epoch, global, mrs, none, once, sliding-window (did you mean 'corgipile'?)
    """
    try:
        return ORDERS[name]
    except KeyError:
        raise UnknownOptionError.of("shuffle", name, ORDERS) from None
