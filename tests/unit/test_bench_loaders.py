"""The contest of loaders: the data it makes, the checks it does, and what it tells of those that fail."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import harness, loaders
from benchmarks.loaders import measure, turns
from benchmarks.loaders.__main__ import choose, place
from benchmarks.loaders.bars import claims
from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job, contestants
from benchmarks.loaders.samples import KINDS, Data, balance, records, table
from benchmarks.loaders.turns import Entry, Outcome, Terms
from tests.order_quality import label_balance

SMALL = Data("records", 400, 16, "uint8")


def in_memory(folder: Path, job: Job) -> Epochs:
    x, labels = (np.concatenate(part) for part in zip(*job.data.chunks(), strict=True))

    def epoch(number: int) -> Iterator[Batch]:
        order = np.random.default_rng((job.seed, number)).permutation(job.data.rows)
        for start in range(0, job.data.rows, job.batch_size):
            picks = order[start : start + job.batch_size]
            yield x[picks], labels[picks]

    return epoch


def nothing(folder: Path, data: Data) -> None:
    (folder / "data").write_text("x")


def hang_with_a_child() -> None:
    subprocess.run(["sleep", "1000"], check=False)


def contestant(name: str = "peer", **changes: Any) -> Contestant:
    return Contestant(**{"name": name, "format": "none", "write": nothing, "open": in_memory, **changes})


def run(who: Contestant, seconds: float, *, once: bool = False) -> tuple[dict[str, Any], float]:
    job = Job(SMALL, batch_size=20)
    record = measure.Record(job)
    return measure._run(who, Path(), job, seconds, once=once, record=record), record.judge()


def outcome(name: str, rate: float, *, quality: float | None = 1.0, first: float = 0.1, **changes: Any) -> Outcome:
    at = changes.pop("read_ahead", None)
    run = {"rate": rate, "steady": rate, "quality": quality, "first": first, "rows": 10.0, "given": 10}
    run |= {"peak_bytes": 2_000, "base_bytes": 1_000, "limited": True, "cold": True, "disk_bytes": 0}
    return Outcome(Entry(name, contestant(name, **changes), at), [run])


@pytest.mark.parametrize("data", [SMALL, Data("rows", 3_000, 28, "float32")], ids=lambda d: d.name)
def test_rows_carry_their_number_and_are_sorted_by_label(data: Data) -> None:
    chunks = list(data.chunks())
    x, labels = (np.concatenate(part) for part in zip(*chunks, strict=True))
    assert data.numbers(x).tolist() == list(range(data.rows))
    assert labels.tolist() == [0] * (data.rows // 2) + [1] * (data.rows // 2)
    assert x.nbytes + labels.nbytes == data.nbytes


def test_data_are_made_in_chunks_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.loaders.samples.CHUNK", 24 * 100)
    first, second = list(SMALL.chunks()), list(SMALL.chunks())
    assert len(first) == 4
    assert all((a[0] == b[0]).all() for a, b in zip(first, second, strict=True))
    assert SMALL.batches().read_all()["x"].to_numpy()[300].tolist() == first[3][0][0].tolist()


def test_the_issue_sizes() -> None:
    assert (records().rows, records().row_bytes) == (200_000, 10_248)
    assert (table().rows, table().row_bytes) == (16_000_000, 120)
    assert table().rows < 2**24  # else a float32 could not hold a row's number


def test_a_loader_that_changes_type_or_shape_is_found_out() -> None:
    with pytest.raises(ValueError, match=r"int64\[5, 16\] was delivered; uint8\[n, 16\] is due"):
        SMALL.numbers(np.zeros((5, 16), np.int64))


def test_quality_is_that_of_the_package_and_counts_one_label_alone_as_no_shuffle() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1], 5_000))
    assert balance(labels, 100) == pytest.approx(label_balance(labels, 100))
    assert balance(np.repeat([0, 1], 5_000), 100) == 100
    assert balance(np.zeros(5_000, np.int64), 100) == 100


def test_everybody_named_in_the_issue_takes_part() -> None:
    everybody = contestants()
    for word in ("raw", "penstock corgipile", "penstock global", "hf map, 0", "hf map, 2", "hf iterable", "memmap"):
        assert any(name.startswith(word) or word in name for name in everybody), word
    for word in (
        "mosaic py1e",
        "mosaic py1br",
        "webdataset",
        "litdata",
        "grain",
        "lance",
        "lancedb",
        "scdataset",
        "spdl",
        "ray",
    ):
        assert any(name.startswith(word) for name in everybody), word


def test_the_list_can_be_read_where_no_peer_is_installed() -> None:
    heavy = "torch datasets streaming webdataset litdata grain lance lancedb scdataset spdl ray"
    code = "import sys; from benchmarks.loaders.contest import contestants; contestants(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=harness.ROOT, stdout=subprocess.PIPE, check=True)
    assert not set(heavy.split()) & set(done.stdout.decode().split())


def test_a_run_counts_epochs_and_judges_the_shuffle() -> None:
    found, quality = run(contestant(), 0.05)
    assert found["epochs"] >= 1
    assert found["rows"] > 20
    assert 0.3 < quality < 3
    assert found["first"] <= found["seconds"]


def test_a_run_can_end_with_its_first_epoch() -> None:
    found, _ = run(contestant(), 60.0, once=True)
    assert (found["epochs"], found["rows"]) == (1, 400)


def test_a_hanging_child_is_ended_with_all_its_processes() -> None:
    found, reason = turns.attempt(hang_with_a_child, {}, limit=300_000_000, timeout=3)
    assert (found, reason) == (None, "hangs: no end after 3 s")


def test_rows_that_come_twice_are_found_out() -> None:
    def twice(folder: Path, job: Job) -> Epochs:
        plain = in_memory(folder, job)
        return lambda number: iter(list(plain(number))[:10] * 2)

    with pytest.raises(ValueError, match="200 of 400 rows of an epoch came twice"):
        run(contestant(open=twice), 60.0, once=True)


def test_labels_of_other_rows_are_found_out() -> None:
    def mixed(folder: Path, job: Job) -> Epochs:
        plain = in_memory(folder, job)
        return lambda number: ((x, labels[::-1]) for x, labels in plain(number))

    with pytest.raises(ValueError, match="labels belong to other rows"):
        run(contestant(open=mixed), 60.0, once=True)


def test_an_empty_epoch_ends_the_run() -> None:
    with pytest.raises(ValueError, match="epoch 0 has no batches"):
        run(contestant(open=lambda folder, job: lambda number: iter(())), 0.01)


def test_a_hanging_loader_is_stopped() -> None:
    def hang() -> None:
        with measure._alarm(0.05):
            while True:
                pass

    with pytest.raises(TimeoutError, match="no end after"):
        hang()


def test_memory_of_children_counts() -> None:
    alone = measure.resident(os.getpid())
    code = "x = b'1' * 50_000_000; print(len(x), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"50000000\n"
        assert measure.resident(os.getpid()) > alone + 45_000_000
        child.communicate(b"\n")


def test_raw_reads_count_all_bytes_of_our_file(tmp_path: Path) -> None:
    raw = contestants()["raw sequential read"]
    raw.write(tmp_path, SMALL)
    size = (tmp_path / "data.arrow").stat().st_size
    for name in ("raw sequential read", "raw direct read, 16 in flight"):
        try:
            batches = list(contestants()[name].open(tmp_path, Job(SMALL))(0))
        except OSError as error:  # some file systems have no direct reads
            pytest.skip(str(error))
        assert sum(count for _, count in batches) * SMALL.row_bytes == pytest.approx(size)


@pytest.mark.slow
def test_one_that_fails_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    everybody = contestants()
    chosen = {"raw sequential read": everybody["raw sequential read"], "lance take": everybody["lance take"]}
    terms = Terms(records(200), "warm", tmp_path, rounds=2, seconds=0.05, batch_size=16)
    outcomes = turns.contend(terms, chosen)
    assert len(outcomes["raw sequential read"].runs) == 2
    printed = turns.table(outcomes)
    if not outcomes["lance take"].works:  # as it is where the peers are not installed
        assert "No module named 'lance'" in outcomes["lance take"].failure
        assert re.search(r"lance take +failed: writing its format: ModuleNotFoundError", printed)
    assert turns.place(terms, everybody["raw sequential read"]).is_dir()
    assert not list(tmp_path.rglob(".*"))  # nothing half-written


def test_what_a_child_leaves_running_is_ended() -> None:
    with subprocess.Popen(["sleep", "60"], env={turns.MARK: "m1"}) as mine:
        assert turns.end_marked("other") == 0
        while not turns.end_marked("m1"):  # until it has become `sleep`, its environment is nobody's
            time.sleep(0.01)
        assert mine.wait(10) == -9


def test_the_reason_of_a_failure_is_the_line_that_names_the_error() -> None:
    found, reason = turns.attempt(math.sqrt, {"x": 1}, timeout=60)  # takes no keywords
    assert found is None
    assert reason.startswith("TypeError: ")


def test_mapped_contestants_have_a_second_turn_where_the_read_ahead_is_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"a": contestant("a", mapped=True), "b": contestant("b")}
    monkeypatch.setattr(turns, "read_ahead_settings", lambda: {"vda": 8192})
    assert [(e.name, e.read_ahead) for e in turns.entries(chosen, condition="cold")] == [
        ("a", None),
        ("b", None),
        ("a @128 kB", 128),
    ]
    assert len(turns.entries(chosen, condition="warm")) == 2
    monkeypatch.setattr(turns, "read_ahead_settings", lambda: {"vda": 128})
    assert len(turns.entries(chosen, condition="cold")) == 2


def everyone(**rates: float) -> dict[str, Outcome]:
    base = {"raw": 100.0, "corgipile": 80.0, "best": 20.0, "stock": 1.0, "slow_stock": 0.1, "lance": 10.0} | rates
    found = [
        outcome("raw sequential read", base["raw"], floor=True, quality=None),
        outcome("penstock corgipile", base["corgipile"], ours=True),
        outcome("penstock global", base.get("globally", 40.0), ours=True, globally=True),
        outcome("litdata", base["best"]),
        outcome("hf map, 0 workers", base["slow_stock"], globally=True, mapped=True),
        outcome("hf map, 0 workers @128 kB", base["stock"], globally=True, mapped=True, read_ahead=128),
        outcome("lance take", base["lance"], globally=True),
    ]
    return {o.entry.name: o for o in found}


def verdicts(outcomes: dict[str, Outcome], kind: str = "records", condition: str = "cold") -> dict[str, str]:
    terms = Terms(KINDS[kind](), condition, Path())
    return {claim.name.split(": ")[1]: claim.verdict for claim in claims(terms, outcomes)}


def test_bars_are_met_only_by_figures_that_reach_them() -> None:
    assert set(verdicts(everyone()).values()) == {"met"}
    missed = verdicts(everyone(lance=30.0, stock=5.0, slow_stock=1.0, raw=120.0, best=90.0))
    assert {name for name, verdict in missed.items() if verdict == "MISSED"} == {
        "global over the best peer that shuffles globally",
        "global over the stock DataLoader over HF map-style at 128 kB",
        "global over the stock DataLoader over HF map-style at this read-ahead",
        "global over raw sequential read",
        "corgipile over raw sequential read",
        "corgipile over every peer, whatever its shuffle",
    }


def test_rows_have_bars_of_their_own() -> None:
    found = verdicts(everyone(best=30.0), "rows", "warm")
    assert found["corgipile over the best peer"] == "MISSED"
    assert found["global over the best peer that shuffles globally"] == "met"


def test_bars_on_quality_first_batch_and_memory() -> None:
    outcomes = everyone()
    outcomes["penstock global"] = outcome("penstock global", 40.0, ours=True, globally=True, quality=1.2, first=0.6)
    outcomes["penstock global"].runs[0]["peak_bytes"] = 900_000_000
    found = verdicts(outcomes)
    for name in ("quality of global", "first batch of global", "memory of global over its budget"):
        assert found[name] == "MISSED"
    assert found["quality of corgipile"] == "met"


def test_without_peers_bars_against_them_are_not_measured_and_say_so() -> None:
    outcomes = {name: o for name, o in everyone().items() if name.startswith(("raw", "penstock"))}
    found = claims(Terms(records(1_000), "cold", Path()), outcomes)
    told = {claim.name.split(": ")[1]: claim for claim in found}
    assert told["global over raw sequential read"].verdict == "met"
    against = told["global over the best peer that shuffles globally"]
    assert against.verdict == "NOT MEASURED"
    assert "make peers" in against.note


def test_ours_is_counted_from_construction_and_peers_from_their_first_batch() -> None:
    mine, peer = outcome("penstock global", 5.0, ours=True), outcome("lance take", 5.0)
    for found in (mine, peer):
        found.runs[0]["steady"] = 9.0
    assert (mine.rate, peer.rate) == (5.0, 9.0)


def test_a_part_of_the_contest_is_chosen_by_words() -> None:
    assert set(choose("raw,lance")) == {name for name in contestants() if "raw" in name or "lance" in name}
    assert choose("") == contestants()
    with pytest.raises(SystemExit, match="no contestant nobody; there are: raw"):
        choose("nobody")


def test_data_are_removed_unless_kept(tmp_path: Path) -> None:
    with place(tmp_path, keep=False) as folder:
        (folder / "x").write_text("x")
    assert not list(tmp_path.iterdir())
    with place(tmp_path, keep=True) as folder:
        (folder / "x").write_text("x")
    assert (tmp_path / "x").exists()


@pytest.mark.parametrize("there", [True, False])
def test_the_contest_runs_in_the_peers_interpreter_or_without_peers(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    if there:
        python.write_text("")
    commands: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> None:
        commands.append(command)
        claim = harness.Claim.at_least("a", 2.0, 1.0)
        body = {"claims": [{f: getattr(claim, f) for f in ("name", "figure", "bar", "met", "note", "unit")}]}
        Path(command[command.index("--json") + 1]).write_text(json.dumps(body))

    monkeypatch.setattr(loaders, "PEERS", python)
    monkeypatch.setattr(loaders.subprocess, "run", answer)
    assert loaders.run(quick=True) == [harness.Claim.at_least("a", 2.0, 1.0)]
    assert commands[0][0] == str(python if there else sys.executable)
    assert ("--only" in commands[0]) is not there
    assert ("make peers" in capsys.readouterr().err) is not there


def test_every_peer_is_pinned_and_torch_first() -> None:
    lines = (harness.ROOT / "benchmarks" / "peers.txt").read_text().splitlines()
    needs = [line for line in lines if line and not line.startswith("#")]
    assert needs[0] == "torch==2.13.0"
    assert all(re.fullmatch(r"[\w\[\]-]+==[\w.]+", line) for line in needs)
    apart = [line for line in lines if line.startswith("# no-deps: ")]
    assert [line.split("==")[0] for line in apart] == ["# no-deps: mosaicml-streaming"]
