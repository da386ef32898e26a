"""The key-value engine of the baselines: RocksDB, a log-structured merge tree like the paper's, tuned for this use.

Where memory is short it is faster than a B-tree such as LMDB, which must read a page to write a number. Gets go out in
sorted lists, several at a time, and puts as one batch. There is no log: a baseline has nothing to recover.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.errors import BudgetError, MissingExtraError, SourceError, UsageError, WriteError

_LEAST_MEMORY = 1 << 20
_LEAST_KEYS = 256
"""The fewest keys that are worth a thread."""


class Engine:
    """An empty store in a folder; closing it flushes.

    Parameters
    ----------
    folder : path
        Where to keep it; made if missing, and refused if there is anything in it.
    memory : int
        Bytes: a quarter of them for cached blocks and a quarter for what is not yet written. The rest is for indices
        and filters; the system's page cache comes on top unless a control group limits it.
    readers : int
        Gets in flight at a time.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     engine = Engine(folder, memory=1 << 20, readers=2)
    ...     engine.put([b"b"], [b"12"])
    ...     got = engine.get([b"a", b"b"], b"--")
    ...     engine.close()
    >>> got
    [b'--', b'12']
    """

    def __init__(self, folder: str | os.PathLike[str], *, memory: int, readers: int) -> None:
        rocks = _rocksdict()
        self.folder = Path(folder)
        if memory < _LEAST_MEMORY:
            raise BudgetError(f"a key-value engine cannot work in {memory} bytes; give it 1 MB or more")
        if readers < 1:
            raise UsageError("would never read", option="readers", value=readers, fixes=["give at least one"])
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(f"no store can be made in {self.folder}: {error}; name a folder to write to") from error
        if any(self.folder.iterdir()):
            raise UsageError(f"{self.folder} is not empty; a baseline begins anew: name another folder or empty it")
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocks.DBCompressionType.none())
        options.set_write_buffer_size(memory // 8)
        options.set_max_write_buffer_number(2)
        options.set_max_background_jobs(2)
        blocks = rocks.BlockBasedOptions()
        blocks.set_block_cache(rocks.Cache(memory // 4))
        # Most features of the first epoch are not there yet; a filter says so without a read.
        blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        unlogged = rocks.WriteOptions()
        unlogged.disable_wal = True
        self._batch = rocks.WriteBatch
        try:
            self._store = rocks.Rdict(str(self.folder), options)
        except Exception as error:  # the engine raises nothing narrower
            raise WriteError(f"no store can be made in {self.folder}: {error}") from error
        self._store.set_write_options(unlogged)
        self._readers = readers
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="penstock-kv")

    @property
    def disk_bytes(self) -> int:
        """What the store's files take."""
        return sum(entry.stat().st_size for entry in os.scandir(self.folder) if entry.is_file())

    def get(self, keys: list[bytes], missing: bytes | None = None) -> list[Any]:
        """Return what each key holds, or ``missing``."""
        size = max(-(-len(keys) // self._readers), _LEAST_KEYS)
        parts = [keys[at : at + size] for at in range(0, len(keys), size)]
        try:
            if len(parts) < 2:
                return list(self._store.get(keys, missing)) if keys else []
            return [
                held for part in self._pool.map(lambda some: self._store.get(some, missing), parts) for held in part
            ]
        except Exception as error:
            raise SourceError(f"the store in {self.folder} cannot be read: {error}") from error

    def put(self, keys: Sequence[bytes], held: Sequence[bytes]) -> None:
        """Set what each key holds, all at once."""
        batch = self._batch(raw_mode=True)
        for key, payload in zip(keys, held, strict=True):
            batch.put(key, payload)
        try:
            self._store.write(batch)
        except Exception as error:
            raise WriteError(f"the store in {self.folder} cannot be written: {error}") from error

    def close(self) -> None:
        """Write what is not yet written and let go of the folder."""
        self._pool.shutdown()
        self._store.close()


def _rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError:
        raise MissingExtraError.of("rocksdict", "bench", "a model in a key-value engine") from None
    return rocksdict
