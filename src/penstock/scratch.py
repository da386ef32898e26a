"""Folders for what is written only for a while: each is named after the process it belongs to.

A killed process leaves its folder behind; the next one that wants one there takes it away.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from penstock.errors import WriteError
from penstock.messages import TextPart
from penstock.outputs import local_path


def own_folder(prefix: str, folder: str | os.PathLike[str] | None, *, what: str, remedy: TextPart) -> Path:
    """Make a folder of our own, in the one given or the system's, and remove those of processes that were killed.

    Parameters
    ----------
    prefix : str
        How its name begins; the number of the process follows.
    folder : path, optional
        Where it is made.
    what, remedy : str
        What cannot be written, and what to do, for the error where it cannot be made.

    Examples
    --------
    >>> made = own_folder(".penstock-example-", None, what="an example", remedy="choose another folder")
    >>> made.is_dir(), made.name.startswith(f".penstock-example-{os.getpid()}-")
    (True, True)
    >>> made.rmdir()
    """
    parent = local_path(folder) if folder is not None else Path(tempfile.gettempdir())
    for stale in parent.glob(f"{prefix}*"):
        pid = stale.name[len(prefix) :].split("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(stale, ignore_errors=True)
    try:
        return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
    except OSError as error:
        raise WriteError(f"cannot write {what} in {parent}: {error.strerror}", fixes=[remedy]) from error


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
