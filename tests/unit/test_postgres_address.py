"""Addresses of PostgreSQL servers: read as libpq reads them, and never shown with their password."""

from __future__ import annotations

import sys

import pytest

from penstock.blocks.open import open as open_blocks
from penstock.blocks.postgres.connect import Address, require_version
from penstock.errors import ConnectError, MissingExtraError, SourceError, UsageError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:s3cret@db.example:5433/shop?sslmode=require", "postgresql://ann@db.example:5433/shop"),
        ("postgres://ann:s3cr%40et@[::1]/shop", "postgresql://ann@[::1]/shop"),
        ("host=/tmp dbname=shop password=s3cret", "postgresql:///tmp/shop"),
        ("", "postgresql:///"),
    ],
)
def test_shown_without_the_password(text, shown):
    address = Address.parse(text)
    assert str(address) == shown
    assert "s3cr" not in repr(address) + str(address)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ann:s3@cret@db.example/shop",
        "postgresql://ann:s3/cret@db.example/shop",
        "host=db password=my s3 cret",
        "postgresql://ann:s3%zzcret@db.example/shop",
        "postgresql://ann@db/shop?s3cret=1",
    ],
)
def test_an_address_that_cannot_be_read_is_not_quoted(text):
    with pytest.raises(UsageError, match="postgresql://user@host") as caught:
        Address.parse(text)
    assert "s3" not in str(caught.value)
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_server_that_is_not_there():
    address = Address.parse("postgresql://ann:s3cret@127.0.0.1:1/shop")
    with pytest.raises(ConnectError, match=r"postgresql://ann@127.0.0.1:1/shop cannot be reached") as caught:
        address.connect()
    assert "s3cret" not in str(caught.value)


def test_passwords_are_taken_out_of_messages():
    assert Address.parse("host=db password=s3cret").hide("FATAL: s3cret is wrong") == "FATAL: *** is wrong"


def test_old_servers_are_refused_by_their_version():
    require_version(140000, place="here")
    with pytest.raises(SourceError, match=r"here is PostgreSQL 13\.14; .* needs 14 or later"):
        require_version(130014, place="here")
    with pytest.raises(SourceError, match=r"PostgreSQL 9\.6\.3"):
        require_version(90603, place="here")


def test_without_the_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"needs psycopg.*penstock\[postgres\]"):
        open_blocks("postgresql://ann@db/shop", table="t")


def test_a_table_has_to_be_named():
    with pytest.raises(UsageError, match=r"table='public\.t'"):
        open_blocks("postgresql://ann@db/shop")
