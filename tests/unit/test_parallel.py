"""Work ahead in threads: results in order, few of them held, failures where they are due, nothing left behind."""

from __future__ import annotations

import threading

import pytest

from penstock import parallel
from penstock.parallel import in_order


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-tested")]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("weighed", [False, True])
def test_results_come_in_order(threads: int, weighed: bool) -> None:
    weigh = (lambda n: n << 20) if weighed else None
    assert list(in_order(lambda n: -n, range(50), threads=threads, weigh=weigh)) == [-n for n in range(50)]
    assert list(in_order(lambda n: -n, [], threads=threads, weigh=weigh)) == []


def test_only_some_results_are_held() -> None:
    taken: list[int] = []

    def items() -> object:
        for n in range(30):
            taken.append(n)
            yield n

    for threads, most, held in ((1, None, 2), (3, None, 6), (2, 3, 3)):
        taken.clear()
        for number, _ in enumerate(in_order(lambda n: n, items(), threads=threads, most=most)):
            assert len(taken) <= number + held


def test_what_is_under_way_weighs_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "LIMIT", 10)
    weights = [4, 4, 4, 25, 1, 9, 2]
    taken: list[int] = []

    def work(weight: int) -> int:
        taken.append(weight)
        return weight

    results = in_order(work, weights, threads=4, weigh=lambda weight: weight)
    assert next(results) == 4
    assert sum(taken) <= 8, "the third would be too much beside the first two"
    assert list(results) == weights[1:]
    monkeypatch.setattr(parallel, "MOST", 2)
    assert list(in_order(work, weights, threads=4, weigh=lambda weight: 0)) == weights


def test_the_first_is_given_out_before_as_many_as_may_be_are_begun() -> None:
    first, asked = threading.Event(), []

    def items() -> object:
        for n in range(20):
            asked.append(n)
            if n == 3:
                assert first.wait(5)
            yield n

    results = in_order(lambda n: first.set() if n == 0 else None, items(), threads=2, most=20)
    next(results)
    assert len(asked) < 20
    results.close()


def test_a_failure_is_raised_where_it_was_due_and_ends_all() -> None:
    def work(n: int) -> int:
        return 10 // (3 - n)

    results = in_order(work, range(100), threads=2, name="tested")
    assert [next(results) for _ in range(3)] == [3, 5, 10]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert not running()


def test_closed_halfway_it_drops_what_was_not_begun() -> None:
    done: list[int] = []
    prepared: list[str] = []
    results = in_order(
        done.append,
        range(1000),
        threads=2,
        name="tested",
        start=lambda: prepared.append(threading.current_thread().name),
    )
    next(results)
    assert set(prepared) <= {"penstock-tested_0", "penstock-tested_1"}
    assert prepared
    results.close()
    assert len(done) < 10
    assert not running()
