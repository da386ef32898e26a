"""The compiled parsers against their plain twins, and blocks against the lines of the file."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from penstock.blocks import parse, parse_reference
from penstock.blocks.csv import CsvSource, parse_csv
from penstock.blocks.libsvm import LibsvmSource, parse_libsvm

quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def csv_value(text: str) -> float:
    # A line ahead puts the number where the fast way may read back 24 bytes.
    rows = parse_csv(f"{'0' * 30}\n{text}\n".encode(), [0], width=1)
    assert rows.fault == parse.OK, text
    return float(rows.values[0, 1])


def libsvm_value(text: str) -> np.float32:
    rows = parse_libsvm(f"{text} 1:{text}\n".encode())
    assert rows.fault == parse.OK, text
    assert same(rows.labels[0], float(text))
    return rows.values[0]


numbers = st.one_of(
    st.floats(allow_nan=True).map(repr),
    st.floats(width=32).map(repr),
    st.integers(-(10**19) + 1, 10**19 - 1).map(str),
    st.tuples(st.integers(0, 10**19 - 1), st.integers(-345, 310)).map(lambda t: f"{t[0]}e{t[1]}"),
    st.tuples(st.sampled_from(["", "-", "+"]), st.integers(0, 10**9), st.text("0123456789", max_size=9)).map(
        lambda t: f"{t[0]}{t[1]}.{t[2]}"
    ),
    st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 18)).map(lambda t: f"{t[0]:.{t[1]}e}"),
    st.tuples(st.floats(-1e6, 1e6), st.integers(0, 9)).map(lambda t: f"{t[0]:.{t[1]}f}"),
)


@quick
@given(numbers)
@example("9007199254740993")  # half way between two float64: to even
@example("9007199254740995")
@example("0.30000001192092896")
@example("16777217")
@example("4.9406564584124654e-324")
@example("2.4703282292062327e-324")
@example("2.4703282292062328e-324")
@example("2.2250738585072011e-308")
@example("1.7976931348623159e308")
@example("00000000000000000000.5")
@example("-0")
@example(".5")
@example("5.")
def test_numbers_of_up_to_19_digits_are_rounded_correctly(text: str) -> None:
    expected = float(text)
    assert same(csv_value(text), expected)
    with np.errstate(over="ignore"):
        assert same(float(libsvm_value(text)), float(np.float32(expected)))


@quick
@given(st.text("0123456789", min_size=1, max_size=40), st.text("0123456789", max_size=40), st.integers(-40, 40))
def test_longer_numbers_are_off_by_one_step_at_most(whole: str, part: str, power: int) -> None:
    text = f"{whole}.{part}e{power}"
    expected = float(text)
    assert abs(csv_value(text) - expected) <= math.ulp(expected)


@pytest.mark.parametrize("text", ["inf", "-Inf", "INFINITY", "+infinity", "nan", "NaN", "-nan"])
def test_named_numbers(text: str) -> None:
    assert same(abs(csv_value(text)), abs(float(text)))
    assert same(float(libsvm_value(text)), float(text)) or math.isnan(float(text))


fields = st.one_of(
    numbers,
    st.sampled_from(
        ["", " ", " 1.5 ", '"2"', '" 3 "', "NA", "null", "N/A", "None", "x", "1x", "1 2", "1e", "--1", "."]
    ),
    st.sampled_from(
        ['"a,b"', '"a""b"', 'a"b', '"', '"a"b', "1e+", "e5", "i", "na na", "+", "1.2.3", "é", "..", "1..2"]
    ),
)
rows_of_fields = st.lists(st.lists(fields, min_size=0, max_size=4), max_size=6)


def run_csv(rows: object, text: bytes, width: int, picks: list[int], probe: bool, delimiter: int) -> tuple[object, ...]:
    data = np.frombuffer(text, np.uint8)
    lines = text.count(b"\n")
    slots = np.full(width, -1, np.int64)
    slots[picks] = np.arange(len(picks))
    values, missing = np.zeros((len(picks), lines)), np.zeros((len(picks), lines), np.uint8)
    strange = np.zeros(len(picks) if probe else 0, np.uint8)
    if rows is parse.csv_rows:
        ends = np.zeros(len(data) + 1, np.uint32)
        other = np.zeros_like(ends)
        count, *totals = parse.find_ends(data, delimiter, ends)
        assert (count, *totals) == parse_reference.find_ends_reference(data, delimiter, other)
        np.testing.assert_array_equal(ends[:count], other[:count])
        fault, n, column, place = parse.csv_rows(data, ends[:count], slots, values, missing, strange)
    else:
        fault, n, column, place = rows(data, delimiter, slots, values, missing, strange)  # type: ignore[operator]
    n = int(n)
    where = (int(column), int(place)) if fault != parse.OK else ()
    return (int(fault), n, where, values[:, :n].tobytes(), missing[:, :n].tobytes(), strange.tobytes())


@quick
@given(rows_of_fields, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 4), st.data())
def test_csv_kernels_equal_their_twin(
    lines: list[list[str]], end: str, probe: bool, width: int, data: st.DataObject
) -> None:
    text = (("1" * 30 + ",") * (width - 1) + "1\n" + "".join(",".join(r) + end for r in lines)).encode()
    picks = data.draw(st.lists(st.integers(0, width - 1), unique=True))
    expected = run_csv(parse_reference.csv_rows_reference, text, width, picks, probe, 44)
    assert run_csv(parse.csv_rows_quoted, text, width, picks, probe, 44) == expected
    if b'"' not in text:
        assert run_csv(parse.csv_rows, text, width, picks, probe, 44) == expected


tokens = st.one_of(
    st.tuples(st.integers(0, 50), numbers).map(lambda t: f"{t[0]}:{t[1]}"),
    st.sampled_from(
        ["qid:3", "# 3:4", "3", "3:", ":4", "a:1", "-1:2", "4294967295:1", "4294967296:1", "q", "1:2:3", "5:x"]
    ),
)
lines_of_tokens = st.lists(
    st.tuples(st.sampled_from(["1", "-1", "+1", "0.5", "1e3", "x", "1,2", "", "2:1"]), st.lists(tokens, max_size=4)),
    max_size=6,
)


def run_libsvm(rows: object, text: bytes) -> tuple[object, ...]:
    data = np.frombuffer(text, np.uint8)
    labels, indptr = np.zeros(text.count(b"\n")), np.zeros(text.count(b"\n") + 1, np.int32)
    indices, values = np.zeros(text.count(b":"), np.uint64), np.zeros(text.count(b":"), np.float32)
    with np.errstate(over="ignore"):
        fault, n, entries, place = rows(data, labels, indptr, indices, values)  # type: ignore[operator]
    n = int(n)
    entries = int(entries) if fault == parse.OK else int(indptr[n])
    where = int(place) if fault != parse.OK else 0
    # NaNs may differ in their sign bit, which means nothing.
    return (
        int(fault),
        n,
        where,
        *(np.nan_to_num(a).tolist() for a in (labels[:n], indptr[: n + 1])),
        *(np.nan_to_num(a[:entries]).tolist() for a in (indices, values)),
    )


@quick
@given(lines_of_tokens, st.sampled_from(["\n", "\r\n", " \n", "\t\n", "\n\n"]), st.sampled_from([" ", "  ", "\t"]))
def test_libsvm_kernel_equals_its_twin(lines: list[tuple[str, list[str]]], end: str, blank: str) -> None:
    text = "".join(blank.join([label, *found]) + end for label, found in lines).encode()
    assert run_libsvm(parse.libsvm_rows, text) == run_libsvm(parse_reference.libsvm_rows_reference, text)


@pytest.mark.parametrize("data", [b"", b"a,b\n" * 50, b",\n" * 200, b"x" * 64, b"\n" * 130])
def test_counting_and_finding(data: bytes) -> None:
    array = np.frombuffer(data, np.uint8)
    assert parse.count_byte(array, 10) == data.count(b"\n")
    ends = np.zeros(len(data) + 1, np.uint32)
    count, lines, quotes = parse.find_ends(array, 44, ends)
    assert (lines, quotes) == (data.count(b"\n"), 0)
    assert ends[:count].tolist() == [i for i, c in enumerate(data) if c in b",\n"]


ends_of_lines = st.sampled_from(["\n", "\r\n"])


@quick
@given(
    st.lists(st.integers(0, 10**12), min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=5),
    st.integers(1, 200),
    ends_of_lines,
    st.booleans(),
    st.booleans(),
)
def test_any_cut_gives_every_line_once(
    tmp_path: object, values: list[int], gaps: list[int], size: int, end: str, final: bool, header: bool
) -> None:
    lines = [f"{i},{v}" for i, v in enumerate(values)]
    for at in gaps:
        lines.insert(min(at, len(lines)), "")
    text = ("a,b" + end if header else "") + end.join(lines) + (end if final else "")
    path = f"{tmp_path}/a.csv"
    with open(path, "w", newline="") as file:
        file.write(text)
    with CsvSource(path, block_size=size, header=header) as source:
        blocks = [source.read(k) for k in range(len(source.block_rows))]
        assert int(source.block_bytes.sum()) == len(text) - (source.format.skip if header else 0)
    assert [x for b in blocks for x in b.column(0).to_pylist()] == list(range(len(values)))
    assert [x for b in blocks for x in b.column(1).to_pylist()] == values


@quick
@given(
    st.lists(st.lists(st.integers(0, 10**6), max_size=5, unique=True), min_size=1, max_size=40),
    st.integers(1, 200),
    ends_of_lines,
    st.booleans(),
)
def test_any_cut_gives_every_libsvm_line_once(
    tmp_path: object, rows: list[list[int]], size: int, end: str, final: bool
) -> None:
    lines = [" ".join([str(i), *(f"{j}:{j % 7}" for j in sorted(r))]) for i, r in enumerate(rows)]
    path = f"{tmp_path}/a.svm"
    with open(path, "w", newline="") as file:
        file.write(end.join(lines) + (end if final else ""))
    with LibsvmSource(path, block_size=size) as source:
        found = [row for k in range(len(source.block_rows)) for row in source.read(k).to_pylist()]
    assert [row["label"] for row in found] == list(range(len(rows)))
    assert [row["indices"] for row in found] == [sorted(r) for r in rows]
    assert [row["values"] for row in found] == [[j % 7 for j in sorted(r)] for r in rows]
