"""The command line as a process: what reaches stdout, killed and interrupted runs, terminals and pipes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.linear import LinearModel

pytestmark = pytest.mark.usefixtures("desk")

PENSTOCK = (sys.executable, "-m", "penstock.cli")
TRAIN = ("train", "clicks.parquet", "--label", "clicked")
# Slow enough to be caught in the middle: many epochs over data that are read anew each time.
LONG = (*TRAIN, "--rate", "exponential", "--epochs", "60", "--memory", "3MB")


def run(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*PENSTOCK, *args], capture_output=True, text=True, timeout=100)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


def start(args: Sequence[str], **how: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([*PENSTOCK, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)


def wait_for_epochs(process: subprocess.Popen[str], checkpoint: str, epochs: int) -> None:
    """Wait until a checkpoint of so many epochs is there."""
    from penstock.modelfile import read_model

    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if Path(checkpoint).exists() and len(read_model(checkpoint)[1]["history"]) >= epochs:
            return
        time.sleep(0.01)
    pytest.fail(f"no checkpoint of {epochs} epochs came: {process.poll()}")


def weights(path: str) -> tuple[bytes, bytes]:
    model = LinearModel.load(path)
    return model.weights.coef.tobytes(), model.weights.intercept.tobytes()


def test_stdout_is_one_json_object() -> None:
    trained = run(*TRAIN, "--epochs", "2", "--json")
    assert trained.stderr == ""
    for args in (
        ["evaluate", "model.penstock", "test.parquet", "--json"],
        ["predict", "model.penstock", "new.parquet", "--json"],
        ["convert", "clicks.csv", "clicks.arrow", "--label", "clicked", "--json"],
    ):
        done = run(*args)
        assert done.stdout.count("\n") == 1
        assert json.loads(done.stdout)["peak_memory_bytes"] > 0


def test_json_holds_null_where_a_number_is_not_finite() -> None:
    table = pq.read_table("test.parquet").slice(0, 100)
    pq.write_table(table.set_column(6, "clicked", [np.ones(100)]), "flat.parquet")  # R² of a constant is not defined
    run(*TRAIN, "--model", "linear", "--epochs", "1")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads(run("evaluate", "model.penstock", "flat.parquet", "--json").stdout, parse_constant=refuse)


@pytest.mark.parametrize(
    ("args", "code"), [([*TRAIN, "--epochs", "1"], 0), ([*TRAIN[:2], "--label", "no"], 1), (["train"], 2)]
)
def test_exit_codes(args: list[str], code: int) -> None:
    assert "Traceback" not in run(*args, code=code).stderr


@pytest.mark.parametrize("more", [["--standardize"], ["--shuffle", "mrs"], ["--patience", "50", "--validation", "0.1"]])
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(more: list[str]) -> None:
    run(*LONG, *more, "--out", "whole.penstock")
    process = start([*LONG, *more, "--out", "broken.penstock"])
    wait_for_epochs(process, "broken.penstock.checkpoint", 5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not Path("broken.penstock").exists()
    done = json.loads(run(*LONG, *more, "--out", "broken.penstock", "--resume", "--json").stdout)
    assert weights("broken.penstock") == weights("whole.penstock")
    whole = LinearModel.load("whole.penstock")
    assert [row["progressive_loss"] for row in done["epochs"]] == [row["progressive_loss"] for row in whole.history]
    assert not Path("broken.penstock.checkpoint").exists()


def test_resume_refuses_changed_data_other_options_and_another_label() -> None:
    process = start([*LONG, "--out", "m.penstock"])
    wait_for_epochs(process, "m.penstock.checkpoint", 1)
    process.kill()
    process.communicate()
    again = [*LONG, "--out", "m.penstock", "--resume"]
    assert "made with no --learning-rate, this run has 0.5" in run(*again, "--learning-rate", "0.5", code=2).stderr
    assert "label" in run(*[a.replace("clicked", "hour") for a in again], code=2).stderr
    assert "features" in run(*again, "--exclude", "hour", code=2).stderr
    pq.write_table(pq.read_table("clicks.parquet").slice(0, 19_000), "clicks.parquet")
    message = run(*again, code=1).stderr
    assert "clicks.parquet is not the data that m.penstock.checkpoint was made from" in message


def test_ctrl_c_says_how_to_continue() -> None:
    process = start([*LONG, "--out", "my model.penstock"])
    wait_for_epochs(process, "my model.penstock.checkpoint", 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    command = (
        "penstock train clicks.parquet --label clicked --rate exponential --epochs 60 --memory 3MB --out 'my model.penstock'"
        " --resume"
    )
    assert stderr.splitlines()[-1] == f"interrupted; continue with: {command}"
    assert Path("my model.penstock.checkpoint").exists()


def test_ctrl_c_is_ignored_where_the_parent_ignores_it() -> None:
    """As under nohup: what was told to go on goes on."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # programs that are started inherit it
    try:
        process = start([*LONG, "--out", "m.penstock"])
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for_epochs(process, "m.penstock.checkpoint", 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 0, stderr
    assert "interrupted" not in stderr
    assert Path("m.penstock").exists()


def test_ctrl_c_with_json_still_gives_one_object() -> None:
    process = start([*LONG, "--json"])
    wait_for_epochs(process, "model.penstock.checkpoint", 1)
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads(stdout)["error"].startswith("interrupted")


def test_ctrl_c_in_compare_leaves_no_process_and_no_copy() -> None:
    process = start(["compare", *LONG[1:], "--epochs", "5000", "--shuffles", "once,none", "--scratch", "."])
    until = time.monotonic() + 60
    while not list(Path().glob(".penstock-copy-*")) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.endswith("interrupted\n")
    assert "Traceback" not in stderr
    assert not list(Path().glob(".penstock-copy-*"))


def on_terminal(*args: str) -> tuple[str, str]:
    """Run with stderr on a terminal; return what stdout and the terminal got."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen([*PENSTOCK, *args], stdout=subprocess.PIPE, stderr=slave, env=environment)
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is gone gives an error, not an end
        while chunk := os.read(master, 65_536):
            seen += chunk
    os.close(master)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, seen
    return out.decode(), seen.decode()


def test_a_terminal_has_a_bar_with_the_live_loss_and_stdout_stays_pure() -> None:
    stdout, terminal = on_terminal(*LONG, "--json")
    assert "train" in terminal
    assert "loss 0." in terminal
    assert "━" in terminal
    assert len(json.loads(stdout)["epochs"]) == 60


def test_rows_go_to_stdout_even_beside_a_bar() -> None:
    stdout, terminal = on_terminal(*TRAIN, "--epochs", "3")
    assert len(stdout.splitlines()) == 6
    assert "saved" not in terminal


def test_a_pipe_has_no_bar() -> None:
    done = run(*TRAIN, "--epochs", "3")
    assert done.stderr == ""
    assert "━" not in done.stdout
    assert "\x1b" not in done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from penstock.cli import main\n"
        "sys.argv = ['penstock', 'train', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'numba', 'numpy', 'pyarrow', 'sklearn', 'safetensors'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "[]"
