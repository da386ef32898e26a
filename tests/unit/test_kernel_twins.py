"""Every plain twin of a kernel is compared with it by some test, which runs a second time with bounds checked."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import kernel_tests

ROOT = Path(__file__).resolve().parents[2]


def test_every_twin_is_used_by_a_test_or_by_another_twin() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    twins = set(re.findall(r"^def (\w+_reference)\(", code, re.MULTILINE))
    assert len(twins) > 20
    alone = {name for name in twins if not re.search(rf"\b{name}\b", tests)}
    assert not [name for name in alone if len(re.findall(rf"^(?!def |    >>>).*\b{name}\b", code, re.MULTILINE)) == 0]


def test_comparisons_are_found_directly_and_by_helpers(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(
        "def pair():\n    return add, add_reference\n\n\n"
        "def check():\n    pair()\n\n\n"
        "def test_by_a_helper():\n    check()\n\n\n"
        "class TestClass:\n    def test_directly(self):\n        scale_reference(1)\n\n\n"
        "def test_of_something_else():\n    the_reference_page()\n"
    )
    assert {name for name in kernel_tests(file) if name.startswith("test")} == {"test_by_a_helper", "test_directly"}
