"""The order that `examples/own_order.py` shows is a whole one: it passes the conformance suite."""

from __future__ import annotations

from penstock.shuffle import ORDERS
from penstock.testing.orders import OrderContract
from tests.example_modules import load_example

own_order = load_example("own_order")
_ORDER = ORDERS.pop("back-and-forth")  # the example itself, which is run, shows that it is found by its name


class TestBackAndForth(OrderContract):
    order = _ORDER
