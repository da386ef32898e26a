"""A job in a fresh process: its peak memory is its own, and a crash is not ours.

The job goes in as JSON; events and at last the figures come back, one JSON object to a line. Nothing is pickled. The
child first compiles and loads the loops that it needs, so that no clock counts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from penstock import events
from penstock.blocks.arrow import ArrowSource
from penstock.blocks.base import BlockSource
from penstock.blocks.conversion import convert
from penstock.blocks.memory import TableSource
from penstock.blocks.open import open as open_source
from penstock.compare.training_request import TrainingRequest
from penstock.errors import PenstockError
from penstock.events import Advanced, Event, Listener, Stream, Warned
from penstock.loader import Loader
from penstock.memory_learner import linear_job
from penstock.messages import Text
from penstock.shuffle import order

_CHILD = "from penstock.compare.process import child; child()"
# How often a child tells of its progress; more would only keep both processes busy.
_EVERY_SECONDS = 0.1
_PATIENCE_SECONDS = 10.0


def in_process(job: TrainingRequest, listen: Listener | None = None) -> dict[str, Any]:
    """Run a job in a fresh process and return its figures, or why there are none."""
    name, stream = job.config.shuffle, Stream([] if listen is None else [listen])
    result: dict[str, Any] | None = None
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,  # a terminal's Ctrl-C comes here only, and is passed on once
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(job.to_dict()).encode())
            with process.stdout:
                for line in process.stdout:
                    message = json.loads(line)
                    if "event" in message:
                        stream.emit(_event_of(message, name))
                    else:
                        result = message
                        if result.get("failed"):
                            result["failed"] = Text.from_list(result["failed"])
            process.wait()
        finally:
            _end(process)
        if result is None:
            complaints.seek(0)
            result = {"shuffle": name, "failed": Text(_crash(process.returncode, complaints.read())), "kind": ""}
    return {"epochs": [], "failed": None, **result}


def _end(process: subprocess.Popen[bytes]) -> None:
    """See that a child is gone, its scratch files removed by itself if it can."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _crash(code: int | None, complaints: bytes) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"its process was ended by {name}" + ("; memory may have run out" if -code == signal.SIGKILL else "")
    lines = [line for line in complaints.decode(errors="replace").splitlines() if line.strip()]
    return f"its process ended with code {code}: {lines[-1].strip() if lines else 'it said nothing'}"


def _event_of(message: dict[str, Any], name: str) -> Event:
    kind = getattr(events, message.pop("event"))
    if "task" in message:
        message["task"] = f"{name}: {message['task']}"
    if kind is Warned:
        return Warned(Text.from_list(message["text"]))
    event: Event = kind(**message)
    return event


def child() -> None:
    """Be the process that runs one strategy: a job comes in as JSON, events and figures go out, one to a line."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed must not come between the lines
    teller = _Teller(out)
    job = TrainingRequest.from_dict(json.load(sys.stdin))
    try:
        warm_up(job)
        answer = job.run(Stream([teller.tell]))
    except PenstockError as error:
        answer = {"shuffle": job.config.shuffle, "failed": error.text.to_list(), "kind": type(error).__name__}
    except KeyboardInterrupt:
        sys.exit(130)
    out.write(json.dumps(answer, allow_nan=False) + "\n")


class _Teller:
    """Writes events as lines, joining steps of progress that follow close on one another."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._held: Advanced | None = None
        self._told = 0.0

    def tell(self, event: Event) -> None:
        if isinstance(event, Advanced):
            if self._held is not None and self._held.task == event.task:
                event = replace(event, amount=event.amount + self._held.amount)
            self._held = event
            if time.monotonic() - self._told < _EVERY_SECONDS:
                return
        elif self._held is not None:
            self._write(self._held)
        self._held = None
        self._write(event)

    def _write(self, event: Event) -> None:
        self._told = time.monotonic()
        fields = {"text": Text(event.text).to_list()} if isinstance(event, Warned) else asdict(event)
        self._out.write(json.dumps({"event": type(event).__name__, **fields}) + "\n")


_ROWS = 100


def warm_up(job: TrainingRequest) -> None:
    """Train on the first and last few rows; what is wrong with the data is left for the job itself to tell."""
    with contextlib.suppress(PenstockError), tempfile.TemporaryDirectory() as folder, job.opened() as training:
        few = _few_rows(training.source, folder)
        config = replace(job.config, epochs=1, memory="1GB", validation=0.0, patience=0)
        model = linear_job(few, config, job.columns, test=few, scratch=folder).run()
        # So few rows are simply kept in memory; the job's are probably read in windows.
        reads = job.config.shuffle if order(job.config.shuffle).facts.copy == "never" else "none"
        with Loader(few, model.recipe, reads, memory=1, stretch=True) as loader:
            for _ in loader.epoch(0):
                pass


def _few_rows(source: BlockSource, folder: str) -> BlockSource:
    """Return rows from both ends of the data, where stored order puts different labels, in the data's own layout."""
    first, last = source.read(0), source.read(len(source.block_rows) - 1)
    rows = pa.Table.from_batches([first.slice(0, _ROWS), last.slice(max(0, len(last) - _ROWS))])
    if not isinstance(source, ArrowSource):
        return TableSource.of(rows)
    path = os.path.join(folder, "few.arrow")
    convert(rows.replace_schema_metadata(source.schema.metadata), path)
    return open_source(path)
