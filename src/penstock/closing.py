"""What is closed when its `with` block ends."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Makes a class with a ``close`` method usable in a `with` statement.

    Examples
    --------
    >>> class Door(Closing):
    ...     def close(self):
    ...         print("closed")
    >>> with Door():
    ...     print("open")
    open
    closed
    """

    __slots__ = ()

    def close(self) -> None:
        """Let go of what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
