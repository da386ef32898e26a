"""The harness that measures claims: turns, limits, children and a report that hides nothing."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import harness
from benchmarks.harness import ChildFailed, Claim, Results, evict, interleave, memory_limit, read_ahead, run_child


def double(number: int) -> dict[str, int]:
    return {"double": 2 * number}


def hold(size: int) -> int:
    return len(bytearray(b"x" * size))


def fail() -> None:
    raise ValueError("on purpose")


def test_contestants_take_turns_in_alternating_order() -> None:
    calls: list[str] = []
    interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3)
    assert calls == ["a", "b", "b", "a", "a", "b"]


def test_a_returned_number_is_the_figure_and_time_otherwise() -> None:
    results = interleave({"rate": lambda: 7.0, "sleep": lambda: time.sleep(0.01)}, repeats=2)
    assert results.figures["rate"] == [7.0, 7.0]
    assert min(results.figures["sleep"]) >= 0.01


def test_before_runs_ahead_of_each_turn() -> None:
    calls: list[str] = []
    interleave({"a": lambda: calls.append("a")}, repeats=2, before=lambda: calls.append("before"))
    assert calls == ["before", "a", "before", "a"]


def test_results_are_medians_spreads_and_ratios() -> None:
    results = Results({"a": [1.0, 2.0, 9.0], "b": [4.0, 4.0, 3.0]})
    assert results.median("a") == 2.0
    assert results.spread("a") == 4.0
    assert results.ratio("a", "b") == 0.5
    assert results.ratio_range("a", "b") == (0.25, 3.0)
    assert "a " in results.table()


def test_child_calls_a_function_in_a_fresh_process() -> None:
    result = run_child(double, arguments={"number": 21})
    assert result["double"] == 42
    assert result["child"]["peak_bytes"] > 1_000_000
    assert not result["child"]["limited"]


def test_the_memory_of_a_child_is_not_that_of_its_parent() -> None:
    held = np.ones(50_000_000)
    assert run_child(double, arguments={"number": len(held)})["child"]["peak_bytes"] < 300_000_000


def test_child_runs_a_command_that_prints_json() -> None:
    result = run_child([sys.executable, "-c", "import os; print('[1,', os.environ['THING'], ']')"], env={"THING": "2"})
    assert result["value"] == [1, 2]


def test_child_that_fails_says_why() -> None:
    with pytest.raises(ChildFailed, match="on purpose") as caught:
        run_child(fail)
    assert not caught.value.out_of_memory


def test_memory_limit_kills_what_outgrows_it_or_says_there_is_none() -> None:
    small = run_child(hold, arguments={"size": 10**6}, limit=200 * 10**6)
    assert small["value"] == 10**6
    if not small["child"]["limited"]:
        assert "no memory limit" in small["child"]["why"]
        pytest.skip(small["child"]["why"])
    with pytest.raises(ChildFailed, match="out of memory") as caught:
        run_child(hold, arguments={"size": 400 * 10**6}, limit=200 * 10**6)
    assert caught.value.out_of_memory


def test_memory_limit_leaves_no_group_behind() -> None:
    with memory_limit(10**8) as limit:
        folder = limit.folder
    assert folder is None or not folder.exists()


def test_read_ahead_is_set_back() -> None:
    before = harness.read_ahead_settings()
    with read_ahead(128) as worked:
        if worked:
            assert set(harness.read_ahead_settings().values()) == {128}
    assert harness.read_ahead_settings() == before


def test_evict_takes_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10_000)
    assert evict(tmp_path) == evict(tmp_path / "file")


def test_claims_are_judged_and_none_is_hidden() -> None:
    claims = [
        Claim.at_least("fast", 5.2, 5, note="cold"),
        Claim.at_least("faster", 4.9, 5),
        Claim.at_most("close", 1.04, 1.05),
        Claim.at_least("broken", math.nan, 5),
        Claim.not_measured("peer", "≥ 2×", "not installed"),
    ]
    assert [c.met for c in claims] == [True, False, True, False, None]
    text = harness.report(claims, quick=True)
    assert "MISSED" in text
    assert "4.9" in text
    assert "2 met, 2 MISSED, 1 NOT MEASURED" in text
    assert "(not installed)" in text


def test_a_benchmark_that_breaks_is_a_missed_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(quick: bool) -> list[Claim]:
        raise RuntimeError(f"quick={quick}")

    def fine(quick: bool) -> list[Claim]:
        return [Claim.at_least("fine", 2, 1)]

    assert harness.main({"broken": broken, "fine": fine}, ["--quick", "--json", str(tmp_path / "out.json")]) == 1
    assert "RuntimeError: quick=True" in capsys.readouterr().out
    body = json.loads((tmp_path / "out.json").read_text())
    assert [c["met"] for c in body["claims"]] == [False, True]
    assert body["machine"]["cores"] >= 1
    assert body["versions"]["numpy"]
    assert body["command"] == "python -m benchmarks broken fine"
    assert harness.main(fine, []) == 0


def test_results_are_written_for_each_benchmark(tmp_path: Path) -> None:
    runs = {name: lambda quick, name=name: [Claim.at_least(name, 2, 1)] for name in ("one", "two")}
    assert harness.main(runs, ["--results", str(tmp_path)]) == 0
    for name in runs:
        body = json.loads((tmp_path / f"{name}.json").read_text())
        assert [claim["name"] for claim in body["claims"]] == [name]
        assert body["command"] == f"python -m benchmarks {name}"
    with pytest.raises(SystemExit):  # figures of small data are not results
        harness.main(runs, ["--quick", "--results", str(tmp_path)])


def test_an_unknown_name_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        harness.main({"epochs": lambda quick: [], "kernels": lambda quick: []}, ["nonsense"])
    assert ended.value.code == 2
    assert "no benchmark nonsense; there are: epochs, kernels" in capsys.readouterr().err
