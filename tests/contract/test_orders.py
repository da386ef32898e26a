"""Every order shipped passes the suite that is shipped with it."""

import pytest

from penstock.errors import UnknownOptionError, UsageError
from penstock.shuffle import ORDERS, Order, OrderFacts, order
from penstock.testing.orders import SHAPES, OrderContract


class TestNone(OrderContract):
    order = order("none")
    fixed = True


class TestOnce(OrderContract):
    order = order("once")
    fixed = True


class TestEpoch(OrderContract):
    order = order("epoch")


class TestSlidingWindow(OrderContract):
    order = order("sliding-window")


class TestMrs(OrderContract):
    order = order("mrs")


class TestBlockOnly(OrderContract):
    order = order("block-only")


class TestCorgiPile(OrderContract):
    order = order("corgipile")


class TestGlobal(OrderContract):
    order = order("global")


def test_every_registered_order_is_tested_here():
    tested = {suite.order.name for suite in OrderContract.__subclasses__()}
    assert tested >= set(ORDERS)


class Loses:
    """An order that forgets its last block: the suite must notice."""

    name, facts = "loses", OrderFacts("the last block is missing")

    def windows(self, shape, epoch):
        return iter(list(ORDERS["corgipile"].windows(shape, epoch))[:-1])

    def mixer(self, shape, epoch, carried=0):
        return None


def test_the_suite_catches_an_order_that_loses_rows():
    broken = OrderContract()
    broken.order = Loses()
    with pytest.raises(AssertionError):
        broken.test_every_block_and_row_comes_once_over_all_ranks()


def test_unknown_order_lists_the_names():
    with pytest.raises(UnknownOptionError, match=r"shuffle='corgi' .*block-only, corgipile.*sliding-window"):
        order("corgi")


def test_shapes_that_cannot_be_are_refused():
    block_rows = SHAPES[0].block_rows
    for wrong, message in (
        ({"rank": 2, "world": 2}, "rank=2 of world=2"),
        ({"held_rows": 0}, "held_rows=0"),
        ({"units": block_rows[:3]}, "one unit a block"),
    ):
        with pytest.raises(UsageError, match=message):
            type(SHAPES[0])(block_rows, **{"held_rows": 5, **wrong})


def test_orders_satisfy_the_protocol():
    for name, each in ORDERS.items():
        one: Order = each
        assert one.name == name
        assert one.facts.copy == {"once": "once", "epoch": "epoch"}.get(name, "never")
        assert one.facts.exact == (name != "mrs")
        assert one.facts.carries == (name == "mrs")
