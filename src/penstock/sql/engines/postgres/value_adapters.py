"""How values go to the server and come back, where psycopg's own way is slow or refuses.

psycopg is handed in by whoever opened the connection; it is not imported here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.blocks.postgres.connect import driver

_FLOATS = 1021
"""The number of the type float4[]."""


def load_unknown_as_text(connection: Any) -> None:
    """Have values that Python has no type for, such as the year 20,000 or infinity, come as text rather than fail."""
    psycopg = driver()
    for name in ("date", "timestamp", "timestamptz", "interval"):
        number = psycopg.adapters.types[name].oid
        usual = connection.adapters.get_loader(number, psycopg.pq.Format.TEXT)

        class Loader(psycopg.adapt.Loader):  # type: ignore[misc, name-defined]  # psycopg comes as Any
            made = usual

            def __init__(self, oid: int, context: Any = None) -> None:
                super().__init__(oid, context)
                self._usual = self.made(oid, context)

            def load(self, data: Any) -> Any:
                try:
                    return self._usual.load(data)
                except psycopg.DataError:
                    return bytes(data).decode()

        connection.adapters.register_loader(number, Loader)


def adapt_arrays(cursor: Any) -> None:
    """Have float4[] come and go through a cursor as NumPy arrays: a list of a million numbers takes seconds."""
    adapt, formats = driver().adapt, driver().pq.Format
    item = np.dtype([("length", ">i4"), ("value", ">f4")])

    class Dumper(adapt.Dumper):  # type: ignore[misc, name-defined]  # psycopg comes as Any
        format = formats.BINARY
        oid = _FLOATS

        def dump(self, obj: Any) -> bytes:
            head = np.array([1, 0, 700, len(obj), 1] if len(obj) else [0, 0, 700], ">i4")
            items = np.empty(len(obj), item)
            items["length"], items["value"] = 4, obj
            return head.tobytes() + items.tobytes()

    class Loader(adapt.Loader):  # type: ignore[misc, name-defined]  # psycopg comes as Any
        format = formats.BINARY

        def load(self, data: Any) -> Any:
            head = np.frombuffer(data, ">i4", min(5, len(data) // 4))
            if head[0] == 0:
                return np.empty(0, np.float32)
            if head[0] != 1 or head[1]:
                return None  # of two dimensions, or with nulls: nothing that was written here
            return np.frombuffer(data, item, offset=20)["value"].astype(np.float32)

    cursor.adapters.register_dumper(np.ndarray, Dumper)
    cursor.adapters.register_loader(_FLOATS, Loader)


def end_copy(connection: Any) -> None:
    """End a COPY from or to the client that a statement has begun, which leaves a connection good for nothing else."""
    pq = driver().pq
    if connection.closed or connection.info.transaction_status != pq.TransactionStatus.ACTIVE:
        return
    wire = connection.pgconn
    connection.cancel_safe(timeout=10)
    wire.nonblocking = 0
    try:
        while (result := wire.get_result()) is not None:
            if result.status == pq.ExecStatus.COPY_IN:
                wire.put_copy_end(b"rows cannot be typed in here")
            elif result.status == pq.ExecStatus.COPY_OUT:
                while wire.get_copy_data(0)[0] > 0:
                    pass
    finally:
        wire.nonblocking = 1
