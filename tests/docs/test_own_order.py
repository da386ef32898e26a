"""The order that `examples/own_order.py` shows is a whole one: it passes the conformance suite."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from penstock.shuffle import ORDERS
from penstock.testing.orders import OrderContract

_PATH = Path(__file__).resolve().parents[2] / "examples" / "own_order.py"
_SPEC = importlib.util.spec_from_file_location("own_order", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
own_order = importlib.util.module_from_spec(_SPEC)
sys.modules["own_order"] = own_order  # dataclasses look up the module of a class
_SPEC.loader.exec_module(own_order)
_ORDER = ORDERS.pop("back-and-forth")  # the example itself, which is run, shows that it is found by its name


class TestBackAndForth(OrderContract):
    order = _ORDER
